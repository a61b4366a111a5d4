"""The endpoint as the official client meets it: whole answers, streams, pictures, stop strings, usage, errors."""

import asyncio

import openai
import pytest
from image_files import data_url, png
from running_endpoint import MODEL, running
from scripted_backend import Script, ScriptedBackend, ids, until

from ds41 import ModelConfig
from ds41.serving.endpoint.api_keys import ApiKeys
from ds41.serving.endpoint.limits import Limits
from ds41.serving.pools.requests import NoWorkers, Overloaded, TooLong, WorkerLost
from ds41.vision import ImageError

SECRETS = {"ann": "ann-secret-0123456789", "bob": "bob-secret-0123456789"}
HELLO = [{"role": "user", "content": "Hi"}]
CONFIG = ModelConfig.nano()


@pytest.fixture(scope="module")
def served():
    """One server for the module; each test writes its own script."""
    backend = ScriptedBackend()
    with running(backend, ApiKeys(SECRETS.items()), Limits(running_tenant=4)) as server:
        yield backend, server


@pytest.fixture
def backend(served):
    backend, _ = served
    backend.script = Script()
    backend.answers.clear()
    return backend


@pytest.fixture(scope="module")
def clients(served):
    """A client for each key, ann's, bob's and one that is nobody's."""
    _, server = served
    # There is no TLS here, and to read the system's certificates takes longer than the tests.
    with openai.DefaultHttpxClient(verify=False) as http:
        options = {"base_url": f"{server.url}/v1", "max_retries": 0, "http_client": http}
        keys = {**SECRETS, "nobody": "wrong-0123456789abcdef"}
        yield {name: openai.OpenAI(api_key=key, **options) for name, key in keys.items()}


@pytest.fixture
def client(clients, backend):
    return clients["ann"]


def ask(client, messages=HELLO, **options):
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


def said(chunks) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_an_answer_as_a_whole(client, backend):
    answer = ask(client, max_tokens=50, temperature=0.5, top_p=0.9, seed=7)
    assert answer.choices[0].message.content == "Hello, world."
    assert (answer.choices[0].message.role, answer.choices[0].finish_reason) == ("assistant", "stop")
    (request,) = backend.requests
    assert request.tenant == "ann"
    assert request.ids == (CONFIG.bos_token_id, *ids("User: Hi\n\nAssistant:"))
    assert (request.max_new_tokens, request.temperature, request.top_p, request.seed) == (50, 0.5, 0.9, 7)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(request.ids), 13)
    assert (usage.total_tokens, usage.prompt_tokens_details.cached_tokens) == (len(request.ids) + 13, 0)
    assert (answer.model, answer.object, answer.id[:9]) == (MODEL, "chat.completion", "chatcmpl-")


def test_defaults_are_those_of_the_api(client, backend):
    ask(client)
    (request,) = backend.requests
    assert (request.temperature, request.top_p, request.seed, request.stop_ids) == (1.0, 1.0, None, None)
    assert request.max_new_tokens == backend.max_tokens - len(request.ids)


def test_a_stream_has_role_pieces_and_finish(client, backend):
    backend.script = Script.of("Grüße 🙂!")
    chunks = list(ask(client, stream=True))
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert said(chunks) == "Grüße 🙂!"
    # Eleven bytes and more tokens than characters: no chunk shows half a character.
    assert not any("\ufffd" in (chunk.choices[0].delta.content or "") for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_says_what_it_cost_if_asked(client, backend):
    ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert [bool(chunk.choices) for chunk in chunks[-2:]] == [True, False]
    usage = chunks[-1].usage
    prompt = len(backend.requests[0].ids)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens) == (
        prompt,
        13,
        prompt,
    )


def test_length_is_a_finish_of_its_own(client):
    assert ask(client, max_tokens=5).choices[0].message.content == "Hello"
    chunks = list(ask(client, max_completion_tokens=5, stream=True))
    assert (said(chunks), chunks[-1].choices[0].finish_reason) == ("Hello", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_cut_the_text_and_end_the_answer(client, backend, stream):
    backend.script = Script.of("one two three four " * 90, pause_s=0.002)
    answer = ask(client, stop=["three", "never"], stream=stream)
    if stream:
        chunks = list(answer)
        assert (said(chunks), chunks[-1].choices[0].finish_reason) == ("one two ", "stop")
    else:
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one two ", "stop")
        assert answer.usage.completion_tokens == len("one two three")
    (given,) = backend.answers
    assert until(lambda: given.ended)
    assert given.cancelled
    assert given.report.generated_tokens < len("one two three four " * 90)


def test_completions_of_text_and_of_ids(client, backend):
    answer = client.completions.create(model=MODEL, prompt="def f():", max_tokens=5)
    assert (answer.choices[0].text, answer.choices[0].finish_reason, answer.object) == (
        "Hello", "length", "text_completion",
    )  # fmt: skip
    pieces = list(client.completions.create(model=MODEL, prompt=[[0, 20, 21]], max_tokens=5, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == "Hello"
    assert pieces[-1].choices[0].finish_reason == "length"
    assert [request.ids for request in backend.requests] == [(CONFIG.bos_token_id, *ids("def f():")), (0, 20, 21)]


def test_completions_without_a_number_have_sixteen_tokens(client, backend):
    backend.script = Script.of("y" * 40)
    answer = client.completions.create(model=MODEL, prompt="x")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("y" * 16, "length")
    assert client.completions.create(model=MODEL, prompt="x", max_tokens=30).choices[0].text == "y" * 30
    # Where less room is left, that.
    client.completions.create(model=MODEL, prompt="x" * (backend.max_tokens - 6))
    assert [request.max_new_tokens for request in backend.requests] == [16, 30, 5]


def test_zero_is_zero_however_it_is_written(client, backend):
    ask(client, frequency_penalty=0, presence_penalty=0.0)
    with pytest.raises(openai.BadRequestError, match=r"frequency_penalty is not supported; expected nothing or 0$"):
        ask(client, frequency_penalty=0.5)
    with pytest.raises(openai.BadRequestError, match="logprobs is not supported; expected nothing or false"):
        ask(client, extra_body={"logprobs": 0.0})


def test_a_conversation_that_goes_on_begins_as_it_did(client, backend):
    backend.script = lambda request: Script.of(" Sure: it is 42.")
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}]
    for question in ("And then?", "And why?"):
        answer = ask(client, talk)
        talk += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": question},
        ]
    ask(client, talk)
    first, second, third = (request.ids for request in backend.requests)
    answered = tuple(ids(" Sure: it is 42."))
    assert second[: len(first) + len(answered)] == first + answered
    assert third[: len(second) + len(answered)] == second + answered


def test_the_clients_own_answer_can_be_sent_back(client, backend):
    message = ask(client).choices[0].message
    ask(client, [*HELLO, message, {"role": "user", "content": "More"}])
    ask(client, [*HELLO, message.model_dump(), {"role": "user", "content": "More"}])
    assert backend.requests[1].ids == backend.requests[2].ids


def test_pictures_stand_where_they_were_put(client, backend):
    first, second = png(40, 30), png(20, 20)
    urls = [data_url(picture) for picture in (first, second)]
    content = [
        {"type": "text", "text": "Look "},
        {"type": "image_url", "image_url": {"url": urls[0]}},
        {"type": "text", "text": " and "},
        {"type": "image_url", "image_url": {"url": urls[1], "detail": "auto"}},
    ]
    ask(client, [{"role": "user", "content": content}])
    (request,) = backend.requests
    picture = CONFIG.image_token_id
    assert request.pictures == (first, second)
    assert request.ids[1:] == (*ids("User: Look "), picture, *ids(" and "), picture, *ids("\n\nAssistant:"))
    # Each picture may take as many positions as the longest, so less is left for the answer.
    room = backend.max_tokens - len(request.ids) - 2 * (CONFIG.vision.max_image_tokens - 1)
    assert request.max_new_tokens == room
    # Who asks for more may have it, if the spans turn out to be short enough.
    ask(client, [{"role": "user", "content": content}], max_tokens=room + 1)
    assert backend.requests[1].max_new_tokens == room + 1


OVERLOADED, CLOSED = Overloaded("200 requests wait", 2.2), RuntimeError("the cluster is closed")
LOST, BUG = WorkerLost("decode-1 was lost"), ZeroDivisionError("secret of the house")


@pytest.mark.parametrize(
    ("script", "kind", "status"),
    [
        (Script(refusal=OVERLOADED), openai.RateLimitError, 429),
        (Script(refusal=NoWorkers("no decode worker")), openai.InternalServerError, 503),
        (Script(refusal=CLOSED), openai.InternalServerError, 503),
        (Script(refusal=ValueError("pictures are none of this model's")), openai.BadRequestError, 400),
        (Script(refusal=BUG), openai.InternalServerError, 500),
        (Script((), error=OVERLOADED), openai.RateLimitError, 429),
        (Script((), error=LOST), openai.InternalServerError, 503),
        (Script((), error=ImageError("the picture is truncated")), openai.BadRequestError, 400),
        (Script((), error=TooLong("there is room for 400")), openai.BadRequestError, 400),
        (Script((), error=BUG), openai.InternalServerError, 500),
        (Script((), error=ValueError("a fault of the pools, not of the request")), openai.InternalServerError, 500),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_goes_wrong_before_the_first_token_has_its_status(client, backend, script, kind, status, stream):
    backend.script = script
    with pytest.raises(kind) as raised:
        ask(client, stream=stream)
    assert raised.value.status_code == status
    assert "secret" not in str(raised.value)
    assert "fault" not in str(raised.value)
    if status == 429:
        assert raised.value.response.headers["retry-after"] == "3"


@pytest.mark.parametrize("error", [LOST, BUG])
def test_what_goes_wrong_in_a_stream_is_an_event(client, backend, error):
    backend.script = Script.of("Hello", error=error)
    chunks = []
    with pytest.raises(openai.APIError) as raised:
        chunks.extend(ask(client, stream=True))
    assert said(chunks) == "Hello"
    assert raised.value.body["type"] in ("service_unavailable", "server_error")
    assert "secret" not in str(raised.value)
    with pytest.raises(openai.InternalServerError):
        ask(client)


def test_keys_and_models(clients, client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.models.retrieve("gpt")
    with pytest.raises(openai.NotFoundError, match="expected nano") as raised:
        client.chat.completions.create(model="gpt", messages=HELLO)
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
    stranger = clients["nobody"]
    for call in (lambda: ask(stranger), lambda: stranger.models.list()):
        with pytest.raises(openai.AuthenticationError) as denied:
            call()
        assert denied.value.code == "invalid_api_key"
        assert "0123456789" not in str(denied.value)


def test_tenants_do_not_share_prefixes(clients, client):
    message, headers = [{"role": "user", "content": "a message of its own"}], {"OpenAI-Organization": "ann"}
    usages = [ask(clients[who], message, user="ann", extra_headers=headers).usage for who in ("ann", "bob", "ann")]
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]
    assert cached[0] < cached[2] == usages[2].prompt_tokens
    assert cached[1] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_answer(client, backend, stream):
    backend.script = Script(tokens=tuple(ids("x" * 2000)), pause_s=0.01)
    if stream:
        chunks = ask(client, stream=True)
        assert next(chunks).choices[0].delta.role == "assistant"
        chunks.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            ask(client.with_options(timeout=0.3))
    (answer,) = backend.answers
    assert until(lambda: answer.ended)
    assert answer.cancelled
    assert answer.report.generated_tokens < 2000


def test_the_asynchronous_client(served, backend):
    _, server = served
    backend.script = lambda request: Script.of("ok " * len(request.ids), pause_s=0.001)

    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=SECRETS["bob"]) as client:

            async def one(number: int) -> str:
                message = [{"role": "user", "content": "x" * number}]
                options = {"model": MODEL, "messages": message, "max_tokens": 2 * number}
                if number % 2:
                    return (await client.chat.completions.create(**options)).choices[0].message.content
                stream = await client.chat.completions.create(**options, stream=True)
                return said([chunk async for chunk in stream])

            return await asyncio.gather(*(one(number) for number in range(1, 5)))

    texts = asyncio.run(all_at_once())
    assert texts == [("ok " * 40)[: 2 * number] for number in range(1, 5)]


def test_more_than_a_tenant_may_run_is_refused(client, backend):
    backend.script = Script(tokens=tuple(ids("x" * 1000)), pause_s=0.01)
    streams = [ask(client, stream=True) for _ in range(4)]
    with pytest.raises(openai.RateLimitError) as raised:
        ask(client)
    assert (raised.value.code, raised.value.response.headers["retry-after"]) == ("rate_limit_exceeded", "1")
    for stream in streams:
        stream.close()
    assert until(lambda: all(answer.ended for answer in backend.answers))
    backend.script = Script()
    assert until(lambda: _works(client))


def _works(client) -> bool:
    try:
        return ask(client).choices[0].message.content == "Hello, world."
    except openai.RateLimitError:
        return False

"""Keys of the endpoint: files of them, whose they are, and that they are shown nowhere."""

import json
import pickle

import pytest

from ds41.serving.endpoint.api_keys import ApiKeys

FIRST, SECOND, THIRD = "first-0123456789abcdef", "second-0123456789abcdef", "third-0123456789abcdef"


def written(tmp_path, text: str | bytes, mode: int = 0o600):
    path = tmp_path / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "text",
    [
        f"# who may come in\nann {FIRST}\n\n  bob\t{SECOND}  \nann {THIRD}\n",
        json.dumps({"ann": [FIRST, THIRD], "bob": SECOND}),
    ],
)
def test_a_key_is_its_tenants(tmp_path, recwarn, text):
    keys = ApiKeys.read(written(tmp_path, text))
    assert [keys.tenant(f"Bearer {secret}") for secret in (FIRST, SECOND, THIRD)] == ["ann", "bob", "ann"]
    assert keys.tenant(f"bearer  {FIRST} ") == "ann"
    assert len(keys) == 3
    assert not recwarn.list


@pytest.mark.parametrize(
    "given",
    [
        None, "", "Bearer", "Bearer ", FIRST, f"Basic {FIRST}", f"Bearer {FIRST}x", f"Bearer {FIRST[:-1]}",
        f"Bearer {FIRST} {SECOND}", f"Bearer {FIRST.upper()}", "Bearer ann", f"Bearer {FIRST}\x00", "Bearer é" * 20,
    ],
)  # fmt: skip
def test_whatever_else_is_nobodys(given):
    assert ApiKeys([("ann", FIRST), ("bob", SECOND)]).tenant(given) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no keys"),
        ("# nobody\n", "there are no keys"),
        (f"ann {FIRST}\n{SECOND}\n", "line 2 has 1 word; expected TENANT SECRET"),
        (f"ann bob {FIRST}\n", "line 1 has 3 words"),
        ("# x\n\nann short\n", r"line 3 \(tenant ann\): the secret has 5 characters; expected 16 or more printable"),
        (f"{FIRST + 'x' * 64} ann-0123456789-01\n", "line 1 has no tenant"),
        (f"../x {FIRST}\n", "line 1 has no tenant"),
        (f"ann {FIRST}\n#\nbob {FIRST}\n", r"line 3 \(tenant bob\): the secret is also one of ann's"),
        (f"ann ä{FIRST}\n", r"line 1 \(tenant ann\): the secret has a space or a character that is not"),
        (b"ann \xff\xfe\n", "is not UTF-8"),
        ("{", "begins as JSON and is none"),
        ('{"ann": 5}', r"key 1 \(tenant ann\): the secret is no string"),
        ('{"ann": [["x"]]}', "the secret is no string"),
        (json.dumps({"ann": [FIRST, "s"]}), r"key 2 \(tenant ann\): the secret has 1 character; expected"),
        ("{}", "there are no keys"),
    ],
)
def test_a_file_that_is_none_is_refused_and_not_shown(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=message) as raised:
        ApiKeys.read(path)
    for secret in (FIRST, SECOND, "short", "0123456789-01"):
        assert secret not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere cannot be read: No such file"):
        ApiKeys.read(tmp_path / "nowhere")


def test_a_file_for_everyone_gives_a_warning(tmp_path):
    path = written(tmp_path, f"ann {FIRST}\n", 0o644)
    with pytest.warns(UserWarning, match="others may read or change it; chmod 600 it"):
        ApiKeys.read(path)


def test_secrets_are_not_kept():
    keys = ApiKeys([("ann", FIRST)])
    assert FIRST.encode() not in pickle.dumps(keys)
    assert repr(keys) == "ApiKeys(1 keys of 1 tenants)"

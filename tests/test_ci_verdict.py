"""The last line of `make test`: what this machine could not check is named, and in CI is a fault."""

from __future__ import annotations

import pytest
import redis_server
import verdict


@pytest.fixture
def tools(monkeypatch):
    """A machine that has both, whatever this one has."""
    monkeypatch.setenv("CHROMIUM", "sh")
    monkeypatch.setenv("REDIS_SERVER", "sh")
    monkeypatch.delenv("CI", raising=False)
    return monkeypatch


def test_nothing_left_out(tools, capsys):
    assert verdict.main() == 0
    assert capsys.readouterr() == ("all checks passed\n", "")


@pytest.mark.parametrize(
    ("variable", "what"), [("CHROMIUM", "what a browser shows"), ("REDIS_SERVER", "the window pool over Redis")]
)
def test_what_is_left_out_is_named_and_fails_in_ci(tools, capsys, variable, what):
    tools.setenv(variable, "/nowhere/program")
    assert verdict.main() == 0
    out, err = capsys.readouterr()
    assert out == "all other checks passed\n"
    assert err.startswith(f"SKIPPED: {what} was not checked: {variable} is '/nowhere/program'")
    tools.setenv("CI", "true")
    assert verdict.main() == 1
    assert capsys.readouterr().err.startswith(f"error: {what} was not checked")


def test_a_machine_without_a_server_is_told_how_to_get_one(tools, tmp_path):
    tools.delenv("REDIS_SERVER")
    tools.setenv("PATH", str(tmp_path))
    with pytest.raises(redis_server.NoServerError, match="apt-get install redis-server"):
        redis_server.find()
    (tmp_path / "valkey-server").write_text("")
    (tmp_path / "valkey-server").chmod(0o755)
    assert redis_server.find() == str(tmp_path / "valkey-server")


def test_a_server_that_does_not_start_says_why(tools, tmp_path):
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho no room here\nexit 1\n")
    program.chmod(0o755)
    server = redis_server.Server(str(program), tmp_path)
    with pytest.raises(RuntimeError, match="did not start: no room here"):
        server.start()

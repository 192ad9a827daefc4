"""``penumbra submit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.errors import DONE, command
from services.cli.options import AsJson, ConfigPath, Overrides, load_with_data


@command
def submit(
    overrides: Overrides = None,
    config: ConfigPath = None,
    address: Annotated[
        str | None, typer.Option(help="Job server, such as http://HEAD:8265; else RAY_API_SERVER_ADDRESS, RAY_ADDRESS.")
    ] = None,
    working_dir: Annotated[Path, typer.Option(help="Directory that travels with the job.")] = Path(),
    exclude: Annotated[list[str] | None, typer.Option(help="Pattern of files that stay behind; repeatable.")] = None,
    submission_id: Annotated[str | None, typer.Option(help="Name of the job; made up when left out.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the log until the job ends.")] = True,
    as_json: AsJson = False,
) -> int:
    """Train on a cluster through Ray's job server. The exit code is the job's; with --no-wait 0 once it is accepted."""
    load_with_data(config, overrides)  # wrong settings should not cost an upload

    import dataclasses
    import json

    from services.cli.output import show, stdout_to_stderr
    from services.submission.job import JobClient, entrypoint
    from services.submission.upload import measure

    upload = measure(working_dir, exclude or ())
    upload.check()
    arguments = [*(["--config", config] if config else []), *(overrides or [])]
    with stdout_to_stderr():
        client = JobClient(address)
        print(f"uploading {upload.files} files, {upload.size_bytes / 2**20:.1f} MiB", file=sys.stderr)
        job = client.submit(entrypoint(arguments), working_dir, exclude or (), submission_id)
        print(f"job {job} submitted", file=sys.stderr)
        result = client.follow(job, _write) if wait else client.result(job)
    text = f"job {result.submission_id} {result.status}" + (f": {result.message}" if result.message else "")
    show(text, json.dumps(dataclasses.asdict(result)), as_json=as_json)
    return DONE if not wait else int(1 if result.exit_code is None else result.exit_code)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()

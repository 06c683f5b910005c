"""`parallel-agents verify` and `diff`: replay a run and confirm its digest; find where two runs part, and why."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np

from parallel_agents.checkpoint import restore
from parallel_agents.checkpoint.store import Store
from parallel_agents.cli.commands import Diff, Verify
from parallel_agents.cli.output import print_result
from parallel_agents.cli.record import (
    SOURCES,
    compared_configs,
    differences,
    open_environment,
    read_config,
    read_record,
    read_summary,
    source_copies,
)
from parallel_agents.core import __version__
from parallel_agents.core.errors import CheckpointError, ConfigError
from parallel_agents.core.files import plain, read_json, write_json
from parallel_agents.core.types import Array
from parallel_agents.engine.run import Run
from parallel_agents.nn.numerics import facts
from parallel_agents.tracking.metrics import Metrics, read_metrics
from parallel_agents.tracking.progress import show_progress
from parallel_agents.tracking.run_folder import RunFolder

FORMAT = "parallel_agents.certificate.1"
_MAX_CERTIFICATE_BYTES = 2**22

# -- verify ----------------------------------------------------------------------------------------------------------


def verify(options: Verify) -> int:
    """Replay a run, or check a certificate; return 1 if the digests differ."""
    if options.run_dir.suffix == ".json" and options.run_dir.is_file():
        return _check_certificate(options)
    folder = RunFolder.open(options.run_dir)
    summary = read_summary(folder)
    recorded = summary.get("digest")
    if not recorded:
        reason = summary.get("no_digest") or "it has no summary.json, so it did not finish"
        raise ConfigError(f"{folder.path} has no digest that could be confirmed: {reason}")
    if options.sample:
        compared = list(_sampled(folder, options))
    else:  # from its configuration alone
        run = open_environment(folder, options.target).prepare()
        compared = [_replayed(run, 0, int(summary["epochs"]), recorded, options)]
    equal, here = all(step["equal"] for step in compared), facts()
    result = {
        "run_dir": str(folder.path),
        "verified": equal,
        "digest": recorded,
        "mode": "sampled" if options.sample else "full",
        "replayed": compared,
        "fingerprint_differences": differences(
            summary["fingerprint"], {name: here[name] for name in summary["fingerprint"] if name in here}
        ),
    }
    if options.certificate is not None:
        write_json(options.certificate, make_certificate(folder, summary, result))
        result["certificate"] = str(options.certificate)
    print_result(result, _format_verified(result, native="arithmetic" in summary["fingerprint"]), as_json=options.json)
    return 0 if equal else 1


def _sampled(folder: RunFolder, options: Verify) -> Iterator[dict[str, Any]]:
    """Replay from each checkpoint to the next one, for the newest `sample` pairs."""
    pairs = list(pairwise(sorted(Store(folder.path).epochs())))[-options.sample :]
    if not pairs:
        raise ConfigError(
            f"{folder.path} has fewer than two checkpoints, so nothing can be sampled: leave --sample out, or train "
            "with experiment.checkpoint_every and experiment.keep_last set"
        )
    for first, last in pairs:
        begun, stored = (open_environment(folder, options.target).prepare() for _ in range(2))
        restore(begun, folder.path, epoch=first)
        restore(stored, folder.path, epoch=last)
        yield _replayed(begun, first, last, stored.summary()["digest"], options)


def _replayed(run: Run, first: int, last: int, digest: str | None, options: Verify) -> dict[str, Any]:
    """Run on to epoch `last` and compare the digest there."""
    found = run.until(last, callbacks=[show_progress(quiet=options.quiet)])["digest"]
    return {"from": first, "to": last, "digest": found, "equal": found == digest is not None}


def _format_verified(result: Mapping[str, Any], *, native: bool) -> str:
    lines = [
        f"epochs {step['from']} to {step['to']}: {'equal' if step['equal'] else 'DIFFERENT'}"
        for step in result["replayed"]
    ]
    lines.append(f"{'confirmed' if result['verified'] else 'NOT confirmed'}: digest {result['digest']}")
    differences = result["fingerprint_differences"]
    if differences:
        lines.append("the run was made with other libraries or another CPU; equal bytes are promised for equal ones:")
        lines += [f"  {line}" for line in differences]
        if not result["verified"]:
            lines.append(
                "its worlds may call functions whose last digits depend on these: replay it on a machine like that one"
                if native
                else "torch computes its networks: replay it on a machine like that one. Runs of compiled kernels "
                "(model.kernels = auto, docs/kernels.md) have the same bytes on every machine"
            )
    elif not result["verified"]:
        lines.append(
            "libraries and CPU are the same: the target, its data or the package have changed since, or a learner of "
            "your own carries more than its state_dict() holds (`parallel-agents check TARGET --algo …` says so)"
        )
    if "certificate" in result:
        lines.append(f"certificate {result['certificate']}")
    return "\n".join(lines) + "\n"


# -- certificates ----------------------------------------------------------------------------------------------------


def make_certificate(folder: RunFolder, summary: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader needs to repeat the run and compare: one JSON value, signed by its own hash."""
    record = read_record(folder)
    body = plain(
        {
            "format": FORMAT,
            "run_id": folder.run_id,
            "target": folder.environment,
            "sources": {place: _sha256(copy) for place, copy in source_copies(folder).items()},
            "git": record.get("git"),
            "config": read_config(folder).as_dict(),
            "epochs": summary["epochs"],
            "digest": summary["digest"],
            "digests": summary["digests"],
            "fingerprint": summary["fingerprint"],
            "verified": {
                "equal": result["verified"],
                "mode": result["mode"],
                "replayed": [{name: step[name] for name in ("from", "to", "equal")} for step in result["replayed"]],
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "version": __version__,
                "fingerprint_differences": result["fingerprint_differences"],
            },
        }
    )
    return {**body, "sha256": certificate_hash(body)}


def certificate_hash(certificate: Mapping[str, Any]) -> str:
    """Return the hash of everything in a certificate but its own hash."""
    body = {name: value for name, value in certificate.items() if name != "sha256"}
    return _sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _check_certificate(options: Verify) -> int:
    """Compare a certificate with its own hash."""
    path = options.run_dir
    try:
        certificate = read_json(path, _MAX_CERTIFICATE_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the certificate {path}: {error}") from error
    if not isinstance(certificate, Mapping) or certificate.get("format") != FORMAT:
        raise ConfigError(f"{path} is no certificate of `parallel-agents verify`")
    intact = certificate.get("sha256") == certificate_hash(certificate)
    result = {"certificate": str(path), "verified": intact, "digest": certificate.get("digest")}
    verdict = "is as it was written" if intact else "was CHANGED after it was written"
    print_result(result, f"{path} {verdict}: digest {result['digest']}\n", as_json=options.json)
    return 0 if intact else 1


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- diff ------------------------------------------------------------------------------------------------------------


def diff(options: Diff) -> int:
    """Compare two run folders; return 1 if they differ in their results."""
    one, other = RunFolder.open(options.run_dir), RunFolder.open(options.other)
    summaries = read_summary(one), read_summary(other)
    records = read_record(one), read_record(other)
    digests, epochs = ([summary.get(name) for summary in summaries] for name in ("digest", "epochs"))
    equal = digests[0] is not None and digests[0] == digests[1]
    result = {
        "runs": [str(one.path), str(other.path)],
        "equal": equal,
        "digests": digests,
        "epochs": epochs,
        "config": differences(*compared_configs(one, other)),
        "fingerprint": differences(*(record.get("fingerprint", {}) for record in records)),
        "version": differences(*({"version": record.get("version"), "git": record.get("git")} for record in records)),
        "sources": differences(_source_hashes(one), _source_hashes(other)),
        "first_metric": None if equal else first_difference(read_metrics(one.path), read_metrics(other.path)),
        "first_tensor": None if equal else _first_tensor(one, other, agent_names(read_metrics(one.path))),
    }
    print_result(result, _format_diff(result), as_json=options.json)
    return 0 if equal else 1


def _source_hashes(folder: RunFolder) -> dict[str, str]:
    return {place.removeprefix(f"{SOURCES}/"): _sha256(copy)[:12] for place, copy in source_copies(folder).items()}


def agent_names(metrics: Metrics) -> list[str]:
    """Return the names of the agents of a run, replica after replica."""
    return [str(name) for name in metrics.start.get("agents", [])]


def first_difference(one: Metrics, other: Metrics) -> dict[str, Any] | None:
    """Return the first epoch, agent and recorded value in which two runs part; None if none is recorded."""
    names = agent_names(one)
    epochs, rounds = zip(one.epochs, other.epochs, strict=False), zip(one.rounds, other.rounds, strict=False)
    for ours, theirs in sorted([*epochs, *rounds], key=lambda pair: int(pair[0]["epoch"])):
        left, right = _columns(ours), _columns(theirs)
        for name in left:
            for agent, (a, b) in enumerate(zip(left[name], right.get(name, []), strict=False)):
                if a != b:
                    return {"epoch": ours["epoch"], "agent": names[agent], "value": name, "values": [a, b]}
    return None


def _columns(record: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values per agent of an epoch or a round."""
    known = {"reward": "rewards", "episode return": "episode_returns", "episodes": "episodes"}
    return {**{name: record[key] for name, key in known.items() if key in record}, **record["metrics"]}


def _first_tensor(one: RunFolder, other: RunFolder, names: Sequence[str]) -> dict[str, Any] | None:
    """Return epoch, agent and tensor in which the oldest common checkpoints of two runs differ.

    names: of the agents of the first run. If they are in several stacks, the row of a stack stands for the agent.
    """
    stores = Store(one.path), Store(other.path)
    for epoch in sorted(set(stores[0].epochs()) & set(stores[1].epochs())):
        try:
            manifests = [store.manifest(epoch) for store in stores]
            ours, theirs = (
                store.read(manifest, f"state-{epoch:06d}.safetensors")
                for store, manifest in zip(stores, manifests, strict=True)
            )
        except CheckpointError:
            continue
        for name in sorted(name for name in set(ours) & set(theirs) if ".metric." not in name):
            if (place := _first_place(ours[name], theirs[name])) is not None:
                stack, _, tensor = name.partition(".")
                alone = [size for size, _ in manifests[0].values["shape"]] == [len(names)]
                agent = names[place] if alone and stack == "0" else f"row {place} of stack {stack}"
                return {"epoch": epoch, "agent": agent, "tensor": tensor}
    return None


def _first_place(one: Array, other: Array) -> int | None:
    """Return the first row in which two arrays differ in a byte; None: they are equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return 0
    rows = zip(np.atleast_1d(one), np.atleast_1d(other), strict=True)
    return next((place for place, (a, b) in enumerate(rows) if a.tobytes() != b.tobytes()), None)


def _format_diff(result: Mapping[str, Any]) -> str:
    lines = ["the runs are equal" if result["equal"] else "the runs differ"]
    lines += [
        f"  digest {digest} after {epochs} epochs"
        for digest, epochs in zip(result["digests"], result["epochs"], strict=True)
    ]
    for name in ("config", "fingerprint", "version", "sources"):
        lines += [f"{name}:"] * bool(result[name]) + [f"  {line}" for line in result[name]]
    if found := result["first_metric"]:
        a, b = found["values"]
        lines.append(
            f"first recorded difference: epoch {found['epoch']}, {found['agent']}, {found['value']}: {a} | {b}"
        )
    if found := result["first_tensor"]:
        lines.append(
            f"oldest common checkpoint that differs: epoch {found['epoch']}, {found['agent']}, tensor {found['tensor']}"
        )
    if not (result["equal"] or result["first_metric"] or result["first_tensor"]):
        lines.append("nothing differs in the epochs and checkpoints that both have recorded")
    return "\n".join(lines) + "\n"

"""``tokenslo generate``: rules, dashboards, runbooks, rollout gates, autoscaling."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from alerts import mixin as mixins
from alerts.formats import (
    AUTOSCALING,
    FORMATS,
    RELEASES,
    ROLLOUT,
    Format,
    Options,
    Release,
    group_files,
    optional,
    unsupported,
)
from slos.document import STDIN
from slos.errors import InvalidFile
from slos.generated_yaml import HEADER
from slos.plan import COMPATS, Compat, Plan, once_per_model, plan
from tokenslo import dashboard_options, output
from tokenslo.files import files_argument, libraries_option, load_all
from tokenslo.names_option import Name, names_of
from tokenslo.scraped import check_served, metrics_option, series

KINDS = ("alerts", "tests", "dashboards", "runbooks", "rollouts", "autoscaling")

_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_LABEL_TEXT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"(?=.{1,253}/)[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/")


def _comma_separated(
    known: tuple[Name, ...],
) -> Callable[[click.Context, click.Parameter, str], tuple[Name, ...]]:
    """Return a Click callback that parses comma-separated names."""
    return lambda _, __, text: names_of(text, known)


def _namespace(_: click.Context, __: click.Parameter, text: str) -> str:
    if text and not _NAMESPACE.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is not a namespace: lower-case letters, digits and '-', at most 63"
        )
    return text


def _labels(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, such as release=prometheus")
        if not _LABEL_TEXT.fullmatch(_LABEL_PREFIX.sub("", name, count=1)):
            raise click.BadParameter(f"{name!r} is not a label name of Kubernetes")
        if value and not _LABEL_TEXT.fullmatch(value):
            raise click.BadParameter(
                f"{value!r} is not a label value of Kubernetes: letters, digits, '-', "
                "'_' and '.', at most 63"
            )
        if labels.setdefault(name, value) != value:
            raise click.BadParameter(f"{name!r} is given twice with different values")
    return labels


@click.command()
@files_argument
@libraries_option
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for alerts/, autoscaling/, dashboards/, rollouts/, runbooks/ and mkdocs.yml; - "
    "prints the YAML of --only alerts or tests, one document per file.",
)
@click.option(
    "--only",
    "kinds",
    default=",".join(KINDS),
    show_default=True,
    metavar="KINDS",
    callback=_comma_separated(KINDS),
    help="What to generate, separated by commas; tests are for promtool.",
)
@click.option(
    "--format",
    "formats",
    default=FORMATS[0],
    show_default=True,
    metavar="FORMATS",
    callback=_comma_separated(FORMATS),
    help=f"Formats of rule files, separated by commas: {', '.join(FORMATS)}. vmalert and Thanos "
    "read the format prometheus.",
)
@click.option(
    "--min-prometheus",
    type=click.Choice(RELEASES),
    default=RELEASES[0],
    show_default=True,
    help="The oldest Prometheus that must read the rules.",
)
@click.option(
    "--namespace",
    default="",
    metavar="NAME",
    callback=_namespace,
    help="Namespace of Kubernetes resources.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_labels,
    help="Label of Kubernetes resources, such as release=prometheus; repeatable.",
)
@click.option("--mixin", is_flag=True, help=f"Also write {mixins.PATH}, a Jsonnet mixin.")
@click.option(
    "--compat",
    type=click.Choice(COMPATS),
    multiple=True,
    help="Also record the series, and add the alert labels, that dashboards of this tool read; "
    "repeatable.",
)
@dashboard_options.dashboard_options
@metrics_option
@click.option(
    "--check", is_flag=True, help="Write nothing; exit 1 with a diff if files are not current."
)
@output.quiet_option
def generate(
    files: tuple[str, ...],
    libraries: tuple[Path, ...],
    folder: Path,
    kinds: tuple[str, ...],
    formats: tuple[Format, ...],
    min_prometheus: Release,
    namespace: str,
    labels: dict[str, str],
    mixin: bool,
    compat: tuple[Compat, ...],
    metrics: tuple[str, ...],
    check: bool,
    quiet: bool,
    **of_dashboards: Any,
) -> None:
    """Generate rules, dashboards, runbooks, rollout gates and autoscaling from SLO files.

    A FILE may be a folder, whose YAML, JSON and Jsonnet files are read, or - for standard input.

    Nothing is written unless all files are valid. Only changed files are written, each as a whole.
    Generated files that are no longer needed are removed: runbook pages of former alerts, further
    files of a service that has become smaller, and rules for a tool that --compat no longer names.

    Notes in runbooks/SERVICE/local/ become part of the page with the same name.
    """
    if mixin:
        _check_mixin(kinds, formats)
    if (printed := folder == Path("-")) and (check or mixin or {*kinds} - {"alerts", "tests"}):
        raise click.UsageError(
            "-o - only prints YAML. Fix: give --only alerts or tests, without --check and --mixin."
        )
    services = load_all(files, libraries)
    check_served(services, series(metrics))
    plans = [
        replace(
            each,
            compat=compat,
            dashboard_url=dashboard_options.dashboard_link(each, of_dashboards),
        )
        for each in once_per_model(map(plan, services))
    ]
    options = Options(formats, min_prometheus, namespace, labels)
    if problems := [problem for each in plans for problem in unsupported(each, options)]:
        raise InvalidFile(problems)
    of_kinds: dict[str, object] = {"alerts": options, "tests": options}
    if "dashboards" in kinds:
        of_kinds["dashboards"] = dashboard_options.options(
            of_dashboards, libraries=libraries, namespace=namespace, labels=labels
        )
    wanted = {path: text for each in plans for path, text in _files(each, kinds, of_kinds)}
    if "rollouts" in kinds:
        wanted.update(_rollout_files(plans, options))
    if "autoscaling" in kinds:
        wanted.update(_autoscaling_files(plans, options))
    if "runbooks" in kinds:
        wanted = _with_site(folder, plans, wanted)
    if mixin:
        wanted[mixins.PATH] = _mixin(plans, wanted)
    if printed:
        click.echo("---\n".join(f"# {path}\n{text}" for path, text in wanted.items()), nl=False)
        return
    with output.reporting(folder):
        changes = output.changes(folder, wanted, _unneeded_files(folder, plans, kinds, formats))
    if check:
        _show(changes, len(wanted), quiet=quiet)
        return
    _write(changes, len(wanted), quiet=quiet)
    if changes and not quiet and sys.stdout and sys.stdout.isatty():
        click.echo(_next_steps(folder, wanted))


def _files(
    plan: Plan, kinds: Iterable[str], options: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    about = {"source": _source(plan.service.file), "version": version("tokenslo")}
    for kind in kinds:
        if kind in ("rollouts", "autoscaling"):
            continue  # only with the rules that they read
        more = {"options": options[kind]} if kind in options else {}
        yield from _generator(kind)(plan, **about, **more).items()


def _generator(kind: str) -> Callable[..., Mapping[str, str]]:
    """Import the generator of a kind of files; the libraries of the others are not loaded."""
    if kind == "dashboards":
        import dashboards

        return dashboards.files
    if kind == "runbooks":
        import runbooks

        return runbooks.files
    import alerts

    return alerts.promtool_test_files if kind == "tests" else alerts.rule_files


def _rollout_files(plans: Iterable[Plan], options: Options) -> Iterator[tuple[str, str]]:
    """Yield the objects of rollout controllers, and the rules that record what they read."""
    import gates

    for each in plans:
        about = {"source": _source(each.service.file), "version": version("tokenslo")}
        yield from gates.files(each, **about).items()
        for form in options.formats:
            groups = gates.groups(each)
            yield from group_files(form, each, ROLLOUT, groups, options, **about)


def _autoscaling_files(plans: Iterable[Plan], options: Options) -> Iterator[tuple[str, str]]:
    """Yield the objects of scalers, and the rules that record what an autoscaler reads."""
    import autoscaling

    for each in plans:
        about = {"source": _source(each.service.file), "version": version("tokenslo")}
        namespace, labels = options.namespace, options.labels
        objects = autoscaling.files(each, namespace=namespace, labels=labels, **about)
        yield from objects.items()
        for form in options.formats:
            groups = autoscaling.groups(each, namespace)
            yield from group_files(form, each, AUTOSCALING, groups, options, **about)


def _with_site(folder: Path, plans: Iterable[Plan], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return files with local notes in runbook pages, and those of the runbooks' site."""
    from tokenslo import runbook_folder

    names = [plan.service.service for plan in plans]
    pages: dict[str, str] = runbook_folder.with_local_notes(folder, names, wanted)
    pages.update(runbook_folder.site(folder, names, version("tokenslo")))
    return pages


def _mixin(plans: Iterable[Plan], files: Iterable[str]) -> str:
    paths = sorted(files)
    return mixins.text(
        [plan.service.service for plan in plans],
        [path for path in paths if path.endswith(".rules.yaml")],
        [path for path in paths if re.fullmatch(r"dashboards/[^/]+\.json", path)],
        version=version("tokenslo"),
    )


def _source(file: str) -> str:
    """Return the name of an SLO file for headers, the same in every working directory."""
    name = file if file == STDIN else Path(file).name
    return "".join(c if c.isprintable() and c not in "<>" else "?" for c in name)


def _check_mixin(kinds: tuple[str, ...], formats: tuple[Format, ...]) -> None:
    """Refuse to write a mixin without the requested files."""
    if "alerts" in kinds and "prometheus" not in formats:
        raise click.UsageError(
            "--mixin imports the rules in Prometheus's own format. Fix: add prometheus to --format."
        )
    if not {"alerts", "dashboards"} & {*kinds}:
        raise click.UsageError(
            "--mixin imports rules and dashboards. Fix: add alerts or dashboards to --only."
        )


def _unneeded_files(
    folder: Path, plans: Iterable[Plan], kinds: Iterable[str], formats: Iterable[Format]
) -> Iterator[Path]:
    """Yield generated files of earlier runs, which are removed unless they are written again."""
    for each in plans:
        for pattern, header in _generated_patterns(each.service.service, kinds, formats):
            for path in sorted(folder.glob(pattern)):
                if path.is_file() and output.has_header(path, header):
                    yield path


def _generated_patterns(
    service: str, kinds: Iterable[str], formats: Iterable[Format]
) -> Iterator[tuple[str, str]]:
    """Yield file patterns, and the header in one of the first two lines of generated files."""
    if "runbooks" in kinds:
        import runbooks
        from tokenslo import runbook_folder

        for pattern in runbook_folder.page_patterns(service):
            yield pattern, runbooks.HEADER
    if "alerts" in kinds:
        for pattern in optional(service, formats):
            yield pattern, HEADER
    if "tests" in kinds:
        yield f"alerts/{service}.quotas.test.yaml", HEADER
    if "rollouts" in kinds:
        import gates

        for pattern in (*gates.patterns(service), *optional(service, formats, ROLLOUT)):
            yield pattern, HEADER
    if "autoscaling" in kinds:
        import autoscaling

        for pattern in (*autoscaling.patterns(service), *optional(service, formats, AUTOSCALING)):
            yield pattern, HEADER


def _show(changes: list[output.Change], total: int, *, quiet: bool) -> None:
    for change in changes:
        click.echo("".join(output.difference(change)), nl=False)
    if changes or not quiet:
        click.echo(_summary(changes, total, "to write", "to remove"), err=bool(changes))
    if changes:
        raise click.exceptions.Exit(1)


def _write(changes: list[output.Change], total: int, *, quiet: bool) -> None:
    output.apply(changes)
    for change in changes:
        if not quiet:
            click.echo(f"{'removed' if change.new is None else 'wrote'} {change.path}")
    if not quiet:
        click.echo(_summary(changes, total, "written", "removed"))


def _next_steps(folder: Path, files: Iterable[str]) -> str:
    """Describe how to load the written files."""
    endings = {
        ".test.yaml": "check the rules: promtool test rules {}",
        ".rules.yaml": "load them: rule_files: [{}] in prometheus.yml",
        ".json": "import the dashboards into Grafana: {}",
    }
    steps = []
    for ending, step in endings.items():
        folders = {str(Path(name).parent) for name in files if name.endswith(ending)}
        steps += [step.format(folder / each / f"*{ending}") for each in sorted(folders)]
    return "\n".join(["Next:", *(f"  - {step}" for step in steps)]) if steps else ""


def _summary(changes: list[output.Change], total: int, written: str, removed: str) -> str:
    gone = sum(change.new is None for change in changes)
    new = len(changes) - gone
    counts = {"current": total - new, written: new, removed: gone}
    listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{total} files: {listed}"

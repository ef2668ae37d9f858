"""Render the arguments of a driver's container; pure (docs/pipelines.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace_operator.pipeline import settings

if TYPE_CHECKING:
    from tailrace_operator.pipeline.plan import Plan

_OF_SESSION: Final = {"spark.ui.enabled": "true", "spark.log.level": "WARN"}
"""Where the driver does all work, jobs would turn both off."""


def driver_arguments(plan: Plan) -> list[str]:
    """Return what the image's entry point gets: a job of ``tailrace pipeline``, or a program, with its arguments."""
    application = plan.spec.application
    if application is not None:
        found = ["application", application.file, *application.arguments]
    else:
        # Jobs have settings of their own, which win over the file of settings, and over which these win.
        wanted = (_OF_SESSION | settings.given(plan)).items()
        conf = [f"--conf={name}={value}" for name, value in wanted]
        found = ["driver", *_job(plan), f"--master={settings.master(plan)}", *conf]
    return [_literal(text) for text in found]


def _job(plan: Plan) -> list[str]:
    spec, tier2 = plan.spec, plan.tier2
    places: list[str]
    match spec.job:
        case "replay":
            places = [str(spec.stream), str(spec.target), f"--checkpoint={spec.checkpoint}"]
        case "backfill":
            places = [str(spec.input), str(spec.stream), f"--checkpoint={spec.checkpoint}"]
        case "audit":
            # The image has nothing that draws the page.
            # An option of Tier 2 alone: the output may be in another store, where the settings of Spark say.
            tier2_endpoint = f"--option=tier2Endpoint={tier2.endpoint}"
            places = [tier2.url, str(spec.output), tier2_endpoint, "--dated", "--no-page"]
            if tier2.region:
                places.append(f"--option=tier2Region={tier2.region}")
        case _:
            places = [str(spec.stream), str(spec.output)]
    every = [] if spec.every_s is None else [f"--every={spec.every_s}"]
    return [str(spec.job), *places, *(f"--{option}" for option in spec.options), *every]


def _literal(text: str) -> str:
    """Return an argument so that Kubernetes replaces no ``$(NAME)`` in it."""
    return text.replace("$(", "$$(")

"""Rules of a bucket that undo what retention promises (docs/kubernetes.md#rules-of-the-bucket).

With versioning a deletion keeps the object as an old version; with object lock it may be refused or keep a version; a
lifecycle rule that expires objects deletes data that streams still retain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from minio.error import S3Error

from tailrace_operator.reconcile.outcome import Condition, Status

if TYPE_CHECKING:
    import minio
    from minio.lifecycleconfig import LifecycleConfig, Rule

    from tailrace_operator.schema.specs import Tier2Spec

RULES_FIT: Final = "BucketRulesFit"
_ABSENT: Final = {
    "NoSuchLifecycleConfiguration",
    "ObjectLockConfigurationNotFoundError",
    "NoSuchObjectLockConfiguration",
    "NotImplemented",  # a store that does not have the feature
    "MethodNotAllowed",
}


@dataclass(frozen=True, slots=True)
class BucketRules:
    """What a bucket does with deletions, where the credentials may read it.

    ``keeps_versions``: versioning is enabled, and no lifecycle rule removes old versions below the prefix.
    ``locks``: deletions are held up by object lock. ``expires``: ids of lifecycle rules that delete current objects
    below the prefix. ``unknown``: what the credentials may not read.
    """

    keeps_versions: bool = False
    locks: bool = False
    expires: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_rules(client: minio.Minio, tier2: Tier2Spec) -> BucketRules:
    """Read a bucket's rules. Raises S3Error for anything but missing rules and missing rights."""
    unknown: list[str] = []

    def ask(call: str) -> object:
        try:
            found: object = getattr(client, call)(tier2.bucket)
        except S3Error as error:
            if error.code == "AccessDenied":
                unknown.append(call.removeprefix("get_").replace("_", " "))
                return None
            if error.code in _ABSENT:
                return None
            raise
        return found

    versioning, lock, lifecycle = (
        ask(call) for call in ("get_bucket_versioning", "get_object_lock_config", "get_bucket_lifecycle")
    )
    rules = rules_below(lifecycle, tier2.prefix)  # type: ignore[arg-type]  # what the calls return
    removes = any(_removes_old_versions(rule) for rule in rules)
    return BucketRules(
        keeps_versions=getattr(versioning, "status", None) == "Enabled" and not removes,
        locks=getattr(lock, "mode", None) is not None,
        expires=tuple(rule.rule_id or "without id" for rule in rules if _expires(rule)),
        unknown=tuple(unknown),
    )


def rules_below(lifecycle: LifecycleConfig | None, prefix: str) -> list[Rule]:
    """Return the enabled rules that hold for objects below a prefix, or for some of them."""
    found = []
    for rule in lifecycle.rules if lifecycle is not None else ():
        wanted = rule.rule_filter
        beneath = "" if wanted is None else wanted.prefix or (wanted.and_operator.prefix if wanted.and_operator else "")
        place = f"{prefix}/" if prefix else ""
        if rule.status == "Enabled" and (place.startswith(beneath or "") or (beneath or "").startswith(place)):
            found.append(rule)
    return found


def _expires(rule: Rule) -> bool:
    """Return whether a rule deletes current objects; one that removes only delete markers does not."""
    expiration = rule.expiration
    return expiration is not None and (expiration.days is not None or expiration.date is not None)


def _removes_old_versions(rule: Rule) -> bool:
    expiration = rule.noncurrent_version_expiration
    return expiration is not None and expiration.noncurrent_days is not None


def rules_condition(tier2: Tier2Spec, rules: BucketRules | None) -> Condition:
    """Return whether deletions free space in the bucket and nothing else deletes; None: the rules are not known."""
    if rules is None:
        message = "The rules of the bucket are not read while it is not usable."
        return Condition(RULES_FIT, Status.UNKNOWN, "NotChecked", message, warn_on=None)
    bucket = f"spec.tier2.bucket: bucket {tier2.bucket}"
    if rules.expires:
        which = ", ".join(rules.expires)
        message = (
            f"{bucket} has lifecycle rules that delete objects of this cluster ({which}): remove them, because data "
            "that streams retain is lost."
        )
        return Condition(RULES_FIT, Status.FALSE, "LifecycleDeletesData", message)
    if rules.locks:
        message = (
            f"{bucket} has a default object lock: deletions free nothing before the lock ends. Use a bucket without it."
        )
        return Condition(RULES_FIT, Status.FALSE, "ObjectLock", message)
    if rules.keeps_versions:
        message = (
            f"{bucket} keeps old versions, so that deletions free nothing: do not use versioning there, or add a "
            "lifecycle rule that removes noncurrent versions."
        )
        return Condition(RULES_FIT, Status.FALSE, "VersioningKeepsDeletedData", message)
    if rules.unknown:
        message = f"The credentials may not read {', '.join(rules.unknown)} of bucket {tier2.bucket}."
        return Condition(RULES_FIT, Status.UNKNOWN, "NotAllowedToRead", message, warn_on=None)
    message = f"Deletions in bucket {tier2.bucket} free space, and no rule of it deletes data."
    return Condition(RULES_FIT, Status.TRUE, "DeletionsFreeSpace", message)

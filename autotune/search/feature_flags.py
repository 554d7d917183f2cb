"""Parts of the planner that can be left out, so that a replay shows what each of them is worth; pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from autotune.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFlags:
    """Which parts take part; a search has those that are in by default.

    Args:
        ties_after_pairs: A simpler config that is as fast by the model is confirmed beside the fastest;
            without this part it takes the place of the fastest before any pair was run.
        free_draws: Some refining runs are drawn at random, more of them early.
        lasting_cost: What a run costs counts until the time for screening is nearly spent; without this
            part no longer after a dozen runs.
        gives_up: A finalist whose loss has no fair chance of being cleared makes room for the next.
        second_looks: On a machine where runs of one config differ, who leads by one run is run again, and
            with time left whoever may lie before it; and improvement is measured from what the model
            makes of the leader, without this part from the highest reading.
        believes_pending: What runs at the moment counts as if it had ended as expected, so that several
            processes at once do not look at the same.
        separates: After a first failure of a config, the same without its least proven value is tried; if
            that works, the value is left alone from there on.
        focuses: The leader is confirmed alone from where on the time left shows its gain only so.
        front_share: Where nothing faster is expected, a part of the time goes to less memory.
        expects: What is known of values beforehand is where the throughput model begins, and says what is
            tried first; without this part nothing is known, and the list of the space is gone through.
        overtakes: Whom the runs of confirmation and ablation leave as likely the fastest is confirmed too.
        ceilings: Knobs that act only on a part of a step too small for a provable gain are left alone.
        from_leader: What one change brings is tried beside the best so far, without this part by itself.
    """

    ties_after_pairs: bool = True
    free_draws: bool = True
    lasting_cost: bool = True
    gives_up: bool = True
    second_looks: bool = True
    believes_pending: bool = True
    separates: bool = True
    focuses: bool = True
    front_share: bool = True
    from_leader: bool = True
    expects: bool = True
    overtakes: bool = True
    ceilings: bool = True

    def put(self, *names: str, present: bool) -> FeatureFlags:
        """With these parts, or without them; ``all`` is every one.

        Raises:
            UsageError: There is no such part.
        """
        wanted = NAMES if names == ("all",) else names
        for name in wanted:
            if name not in NAMES:
                hint = did_you_mean(name, NAMES) or f"one of: {', '.join(NAMES)}"
                raise UsageError(f'the planner has no part "{name}"', hint=hint)
        return replace(self, **dict.fromkeys(wanted, present))


NAMES = tuple(field.name for field in fields(FeatureFlags))
"""Every part by name."""

DEFAULT = FeatureFlags()
"""What a search has unless told otherwise."""

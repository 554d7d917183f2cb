"""Features of the planner that can be disabled, so that a replay shows the value of each; pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from autotune.errors import UsageError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFlags:
    """Enabled features of the planner; a search uses the defaults.

    Args:
        ties_after_pairs: Confirm a simpler config of equal predicted speed beside the fastest; without this,
            it replaces the fastest before any pair was run.
        free_draws: Draw some refining runs at random, more of them early.
        lasting_cost: Count the cost of a run until the time for screening is nearly spent; without this, only
            for the first dozen runs.
        gives_up: Replace a finalist whose loss has no fair chance of being cleared by the next.
        second_looks: On a noisy machine, replicate a leader with a single run, and with time left its close
            followers. Improvement is measured from the leader's prediction; without this, from the highest
            reading.
        believes_pending: Count pending runs as if they had ended as predicted, so that parallel processes do
            not test the same.
        separates: After the first failure of a config, try it without its least proven value; if that works,
            exclude the value.
        focuses: Confirm the leader alone once the time left shows its gain only that way.
        front_share: Spend part of the time on less memory where nothing faster is expected.
        expects: Start the throughput model and the order of trials from prior knowledge of values; without
            this, try the list of the space in order.
        overtakes: Confirm a challenger that confirmation and ablation runs make the likely fastest.
        ceilings: Skip knobs that act only on a part of a step too small for a provable gain.
        from_leader: Try single changes beside the best so far; without this, alone.
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
        """Return a copy with these features enabled or disabled; ``all`` is every one.

        Raises:
            UsageError: There is no such feature.
        """
        wanted = NAMES if names == ("all",) else names
        for name in wanted:
            if name not in NAMES:
                hint = did_you_mean(name, NAMES) or f"one of: {', '.join(NAMES)}"
                raise UsageError(f'the planner has no part "{name}"', hint=hint)
        return replace(self, **dict.fromkeys(wanted, present))


NAMES = tuple(field.name for field in fields(FeatureFlags))
"""Names of all features."""

DEFAULT = FeatureFlags()
"""Features of a search by default."""

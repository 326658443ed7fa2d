"""Draw a run of post-training: a line for each step, and what became of it."""

from __future__ import annotations

from statistics import fmean

from rich.console import Console
from rich.table import Table

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import clean, header_table, percent
from ridgeline.runtime.rl import RlOutcome, RlStepRow


def rl_step_line(row: RlStepRow, steps: int) -> str:
    """One step while it runs: reward, loss, mismatch with the sampler, and its seconds by phase."""
    line = f"step {row.step}/{steps}"
    if row.reward is not None:
        line += f"  reward {row.reward:.3f}"
    line += f"  loss {row.loss:.4f}"
    line += "".join(f"  {name.replace('_', ' ')} {value:.3f}" for name, value in row.figures.items())
    if row.mismatch.mean is not None:
        line += f"  mismatch {row.mismatch.mean:.1e}"
    elif row.reward is not None:
        line += f"  divergence {row.mismatch.divergence:.1e}"
    line += "".join(f"  {clean(entry.source).plain} {entry.accuracy:.0%}" for entry in row.held_out)
    if row.staleness.largest:
        line += f"  lag {row.staleness.mean:.1f}"
    if row.lost:
        line += f"  {row.lost} samples again"
    phases = "  ".join(f"{name} {seconds:.2f}" for name, seconds in row.phases.items())
    return f"{line}  {row.seconds:.2f} s: {phases}"


def draw_rl_run(outcome: RlOutcome, screen: Console) -> None:
    """The end of a run of post-training in a few lines."""
    rows = outcome.rows
    for note in outcome.notes:
        screen.print(clean(note), markup=False)
    where = f"{outcome.algorithm}, {outcome.placement}: {outcome.train_ranks} rank(s) train"
    where += f", {outcome.replicas} replica(s) generate" if outcome.replicas else ""
    if not rows:
        screen.print(f"nothing to do: step {outcome.resumed} was reached before ({where})")
        return
    again = f", {outcome.restarts} restart(s)" if outcome.restarts else ""
    begun = f"resumed behind step {outcome.resumed}, " if outcome.resumed else ""
    ended = "stopped" if outcome.stopped else "done"
    screen.print(f"{ended} at step {rows[-1].step}: {begun}{where}{again}")
    generates = rows[0].reward is not None
    if generates:
        screen.print(f"mean reward {outcome.first_reward:.3f} -> {outcome.last_reward:.3f} (the last five steps)")
    else:
        screen.print(f"loss {outcome.first_loss:.4f} -> {outcome.last_loss:.4f} (the last five steps)")
    if outcome.held_out:
        screen.print(_held_out(outcome))
    tokens = fmean(row.tokens_per_s for row in rows)
    screen.print(f"step {format_quantity(outcome.step_s, 's')}, {tokens:,.0f} tokens/s of answers")
    seconds = sum(row.seconds for row in rows)
    names = dict.fromkeys(name for row in rows for name in row.phases)
    shares = {name: sum(row.phases.get(name, 0.0) for row in rows) / seconds for name in names}
    screen.print("of its time: " + ", ".join(f"{name} {percent(share)}" for name, share in shares.items()))
    measured = [row.mismatch for row in rows if row.mismatch.mean is not None]
    if measured:
        mean = fmean(mismatch.mean or 0.0 for mismatch in measured)
        largest = max(mismatch.largest or 0.0 for mismatch in measured)
        screen.print(f"log-probabilities of trainer and sampler: {mean:.1e} apart on average, at most {largest:.1e}")
    lag = max(row.staleness.largest for row in rows)
    if lag:
        screen.print(f"samples were at most {lag} version(s) of the weights behind")
    if outcome.timeline:
        screen.print(f"timeline {clean(outcome.timeline)}", markup=False)
    if outcome.checkpoint:
        screen.print(f"checkpoint {clean(outcome.checkpoint)}", markup=False)


def _held_out(outcome: RlOutcome) -> Table:
    """What the model makes of questions that nothing trained on, before and after."""
    right = ("likeliest is right", "forgotten", "drawn is right", "loss")
    table = header_table(("held out", *right), right=right)
    for change in outcome.held_out:
        name = f"{change.source} (earlier data)" if change.earlier else change.source
        gone = percent(change.forgotten) if change.forgotten > 0 else ""
        before, after = change.before, change.after
        table.add_row(
            clean(name), f"{percent(before.accuracy)} -> {percent(after.accuracy)}", gone,
            f"{percent(before.chance)} -> {percent(after.chance)}", f"{before.loss:.3f} -> {after.loss:.3f}",
        )  # fmt: skip
    return table

"""The pieces that pages of the workbench are made of: values that become JSON, and that one script draws.

A number stands only in an `ExplainedNumber`, so that whatever a page shows of a figure can be opened.
"""

from __future__ import annotations

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.web.figures import ExplainedNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCell:
    """A cell, or an item, that leads to another state."""

    text: str
    href: str


TableCell = str | ExplainedNumber | LinkCell


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureItem:
    """A large figure with what it means; `tone` is good or bad where it is a verdict."""

    name: str
    number: TableCell
    tone: str = ""

    JSON = "name number tone?"


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """Large figures beside each other."""

    items: tuple[FigureItem, ...]

    JSON = "kind='figures' items"


@dataclass(frozen=True, slots=True, kw_only=True)
class BarLine:
    """A part of a whole; `colour` is a class of the style, such as compute or network."""

    name: str
    number: ExplainedNumber
    colour: str
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Parts below each other on one scale: as a waterfall each begins where the last one ended.

    total   what the scale ends at; limit   a line across, where there is one
    """

    name: str
    title: str
    rows: tuple[BarLine, ...]
    total: ExplainedNumber
    limit: ExplainedNumber | None = None
    caption: str = ""
    style: str = "waterfall"

    JSON = "kind='bars' name title rows total limit? caption? style"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLine:
    """One stack of parts, such as the memory of a pipeline stage."""

    name: str
    parts: tuple[BarLine, ...]
    total: ExplainedNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class StackChart:
    """Stacks below each other on one scale, and a limit across them."""

    name: str
    title: str
    rows: tuple[StackLine, ...]
    limit: ExplainedNumber | None = None
    caption: str = ""

    JSON = "kind='stacks' name title rows limit? caption?"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLine:
    """One line of a tornado: what an input does in both directions, and further cells."""

    name: LinkCell
    low: ExplainedNumber
    high: ExplainedNumber
    cells: tuple[TableCell, ...] = ()
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TornadoChart:
    """Effects to both sides of nothing, the largest first; `head` names the further cells."""

    name: str
    title: str
    rows: tuple[PairLine, ...]
    head: tuple[str, ...] = ()
    caption: str = ""

    JSON = "kind='tornado' name title rows head caption?"


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgPicture:
    """A drawing of the house's own charts; its points say what they are when pointed at."""

    name: str
    title: str
    svg: str
    caption: str = ""

    JSON = "kind='picture' name title svg caption?"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridTable:
    """A table that downloads as CSV and JSON; columns in `text` read from the left, rows in `chosen` stand out."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    text: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    caption: str = ""

    JSON = "kind='table' name title head rows text chosen caption?"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardItem:
    """A question that leads to a page that answers it."""

    title: str
    text: str
    href: str
    verb: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardGrid:
    """Questions beside each other."""

    title: str
    items: tuple[CardItem, ...]

    JSON = "kind='cards' title items"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemList:
    """Reasons why something is not possible, each with what to do."""

    title: str
    items: tuple[Problem, ...]

    JSON = "kind='problems' title items"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLines:
    """A list of sentences under a title; folded where there is much of it."""

    title: str
    lines: tuple[str, ...]
    is_folded: bool = False

    JSON = "kind='lines' title lines is_folded"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeText:
    """A text to copy: a command, a scenario file, a script."""

    name: str
    title: str
    text: str
    file: str = ""

    JSON = "kind='code' name title text file?"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A part of a whole with its figures and the parts inside."""

    title: str
    note: str = ""
    figures: tuple[FigureItem, ...] = ()
    children: tuple[TreeNode, ...] = ()

    JSON = "title note? figures? children?"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeChart:
    """What something is made of, as boxes in boxes."""

    name: str
    title: str
    root: TreeNode

    JSON = "kind='tree' name title root"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskButton:
    """A long computation that a page starts, follows and can cancel; its answer is more pieces.

    task      which one; `automatic`: it starts with the page
    confirm   a word that has to be typed before it starts; refusal: why it cannot start at all
    """

    task: str
    label: str
    note: str = ""
    confirm: str = ""
    refusal: str = ""
    automatic: bool = False

    JSON = "kind='task' task label note? confirm? refusal? automatic"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropZone:
    """Where files are dropped."""

    title: str
    note: str

    JSON = "kind='drop' title note"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFields:
    """Fields whose values become one choice of the URL, joined by semicolons."""

    title: str
    choice: str
    fields: tuple[tuple[str, str, str], ...]
    note: str = ""

    JSON = "kind='form' title choice fields note?"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFrame:
    """The Perfetto page, on an address of its own, with a trace of this state."""

    title: str
    src: str
    note: str = ""

    JSON = "kind='frame' title src note?"


PageBlock = (
    FigureRow | BarChart | StackChart | TornadoChart | SvgPicture | GridTable | CardGrid | ProblemList | TextLines
    | CodeText | TreeChart | TaskButton | DropZone | FormFields | TraceFrame
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceControl:
    """A choice as a page shows it: what is chosen, what may be, each with its name."""

    key: str
    label: str
    style: str
    value: str
    options: tuple[tuple[str, str], ...]
    default: str
    help: str = ""
    free: bool = False

    JSON = "key label style value options default help? free"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """Choices that belong together."""

    title: str
    controls: tuple[ChoiceControl, ...]
    is_folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """What a page shows: the question, the answer in one sentence, how sure it is, the choices and the pieces below.

    command   the command line that computes the same; evidence   what the numbers rest on
    """

    page: str
    title: str
    answer: str
    blocks: tuple[PageBlock, ...]
    certainty: str = ""
    tone: str = ""
    controls: tuple[ControlGroup, ...] = ()
    command: str = ""
    evidence: str = ""
    url: str = ""

    JSON = "page title answer certainty? tone? controls blocks command? evidence? url"

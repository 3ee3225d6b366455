"""RESULTS.md, and the figures that README.md and docs quote, from the scripts' records in ``benchmarks/results``.

    python benchmarks/results_page.py

Pages quote a figure between two comments. The first names script, row and column, or no column if the row is one
figure:

    It takes <!-- figure linear_speed / linear, posterior alone / s -->1.78<!-- end --> s.

and a whole table, or some of its columns, so:

    <!-- figures: tables: rows; family; verdict -->

    <!-- end -->

No line may begin with the first form: Markdown would take the whole line for HTML.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "benchmarks" / "RESULTS.md"
FIGURE = re.compile(r"(<!-- figure (.+?) -->)(.*?)(<!-- end -->)")
TABLE = re.compile(r"(<!-- figures: ([\w-]+)(?:: (.+?))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
HEAD = """# Results

Figures that the project claims, with the commands that repeat them. `python benchmarks/results_page.py` writes this
page from `benchmarks/results`, one file a script, which a script writes when it is run. Older runs are in the history,
and the experiments behind decisions in [docs/decisions](../docs/decisions/README.md).

Where nothing else is said: {machine}, {versions}. The machine's
speed drifts by some tens of per cent, so compare figures within a table, which were measured side by side in one run,
but not between tables.
"""
DECISIONS = "../docs/decisions/"
MORE = """## Figures behind decisions

A record with its command and figures, and the decision that rests on it.

"""


def records() -> dict[str, dict[str, Any]]:
    """Each script's record, by the name of its file."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    return {name: record for name, record in found.items() if "figures" in record}


def format_figure(value: Any) -> str:
    """The text of a figure on a page."""
    if value is None:
        return "–"
    if isinstance(value, str):
        text = value
    elif isinstance(value, int) or 1000 <= abs(value) < 1e12:
        text = f"{value:,.0f}"
    else:
        text = f"{value:g}"
    return re.sub(r"^-(?=\d)", "−", text)


def table(figures: dict[str, Any], columns: list[str] | None = None) -> str:
    """A Markdown table of a record's rows; if the rows are single figures, it has one column, "value"."""
    rows = {name: row if isinstance(row, dict) else {"value": row} for name, row in figures.items()}
    fullest_first = sorted(rows.values(), key=len, reverse=True)
    every = list(dict.fromkeys(column for row in fullest_first for column in row))
    columns = columns or every
    if unknown := set(columns) - set(every):
        raise KeyError(f"{', '.join(unknown)} names no column: expected some of {'; '.join(every)}.")
    sides = ["--:" if any(is_number(row.get(column)) for row in rows.values()) else "---" for column in columns]
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'|'.join(sides)}|"]
    lines += [
        f"| {name} | {' | '.join(format_figure(row.get(column)) for column in columns)} |" for name, row in rows.items()
    ]
    return "\n".join(lines) + "\n"


def is_number(value: Any) -> bool:
    """Whether a figure is a number, or text that begins with one."""
    return value is not None and (not isinstance(value, str) or value[:1] in "-0123456789")


def versions(record: dict[str, Any]) -> str:
    """A sentence with the versions of a record."""
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items())


def page(found: dict[str, dict[str, Any]]) -> str:
    """The complete text of RESULTS.md."""
    usual = found["trust"]
    parts = [HEAD.format(machine=usual["machine"], versions=versions(usual))]
    for record in (record for record in found.values() if "decision" not in record):
        where = [] if record["machine"] == usual["machine"] else [record["machine"], versions(record)]
        facts = "; ".join([f"`{record['command']}`", *where, *([record["date"]] if record["date"] else [])])
        older = f"\nOf an earlier run: {'; '.join(record['older'])}.\n" if record["older"] else ""
        notes = f"\n{record['notes']}\n" if record["notes"] else ""
        parts.append(f"## {record['title']}\n\n{facts}\n\n{table(record['figures'])}{notes}{older}")
    parts.append(MORE + "".join(decision_line(name, record) for name, record in found.items() if "decision" in record))
    return "\n".join(parts)


def decision_line(name: str, record: dict[str, Any]) -> str:
    """A line for a record that only a decision page uses."""
    return f"- [{record['title']}](results/{name}.json) [{record['decision'][:3]}]({DECISIONS}{record['decision']})\n"


def figure(found: dict[str, dict[str, Any]], key: str) -> str:
    """The figure that a page names; raises an error that lists the existing ones if it does not exist."""
    name, row, *column = key.split(" / ")
    if name not in found:
        raise KeyError(f"{key!r} names no record: expected one of {', '.join(found)}.")
    figures = found[name]["figures"]
    if row not in figures:
        raise KeyError(f"{key!r} names no row of {name}.json: expected one of {'; '.join(figures)}.")
    values = figures[row]
    if not column:
        return format_figure(values)
    if column[0] not in values:
        raise KeyError(f"{key!r} names no column of {name}.json: expected one of {'; '.join(values)}.")
    return format_figure(values[column[0]])


def refresh(text: str, found: dict[str, dict[str, Any]]) -> str:
    """A page's text with the records' figures written between its comments."""

    def block(match: re.Match[str]) -> str:
        columns = match[3].split("; ") if match[3] else None
        return f"{match[1]}\n{table(found[match[2]]['figures'], columns)}\n{match[5]}"

    return TABLE.sub(block, FIGURE.sub(lambda match: match[1] + figure(found, match[2]) + match[4], text))


def pages() -> list[Path]:
    """The pages that may quote figures."""
    folders = (ROOT / "docs", ROOT / "docs" / "decisions")
    return [ROOT / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]


def main() -> None:
    """Write all pages again."""
    found = records()
    PAGE.write_text(page(found), encoding="utf-8")
    for path in pages():
        before = path.read_text(encoding="utf-8")
        if (after := refresh(before, found)) != before:
            path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()

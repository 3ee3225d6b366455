"""The colours and lines of figures.

Figures are drawn in stand-in colours, which the page replaces by those of its light or dark theme.
"""

NAMES = ["ink", "muted", "line", "paper", "trust", "caution", "reject", *(f"c{i}" for i in range(8))]
STAND_IN = {name: f"#0a0b{i + 16:02x}" for i, name in enumerate(NAMES)}  # colours that no figure uses otherwise
INK, MUTED, LINE, PAPER = (STAND_IN[name] for name in NAMES[:4])
BAD = STAND_IN["reject"]
COLOURS = [STAND_IN[f"c{i}"] for i in range(8)]
MATPLOTLIB = {
    "svg.fonttype": "none", "svg.hashsalt": "tractable", "font.family": "sans-serif", "font.size": 8.5,
    "text.color": INK, "axes.edgecolor": LINE, "axes.linewidth": 0.8, "axes.labelcolor": MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "xtick.color": LINE, "ytick.color": LINE,
    "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED, "xtick.major.size": 3, "ytick.major.size": 0,
    "xtick.major.width": 0.8, "lines.linewidth": 1.2, "lines.solid_capstyle": "round",
    "axes.formatter.limits": (-4, 5), "axes.formatter.useoffset": False, "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
}  # fmt: skip

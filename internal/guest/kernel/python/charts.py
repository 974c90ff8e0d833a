# Describes what figures and data frames show, as data: programs can draw a chart again or read its points. Runs in the
# namespace of kernel.py, when a cell first shows one.

import datetime
import math
import re

_UNIT = re.compile(r"[(\[]([^)\]]+)[)\]]\s*$")
_CHART_LIMIT = 1 << 20      # characters of a chart or a table
_TABLE_CELLS = 100_000


def _plain(value):
    """Returns a value as one of JSON. What is not a number has no value there."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item() if not hasattr(value, "isoformat") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat() if value == value else None    # NaT is not equal to itself
    return str(value)


def _small(shown):
    return shown if len(_dumps(shown)) <= _CHART_LIMIT else None


def _table_of(frame):
    """Returns the columns of a data frame: lists of values by name. None: it is too large, or a name occurs twice."""
    if len(frame) * len(frame.columns) > _TABLE_CELLS or not frame.columns.is_unique:
        return None
    return _small({str(name): [_plain(v) for v in frame[name].tolist()] for name in frame.columns})


def _chart_of(figure):
    """Returns a description of a figure, or None if it has no axes or is too large."""
    charts = [_axes_chart(ax) for ax in figure.axes]
    if not charts:
        return None
    if len(charts) == 1:
        return _small(charts[0])
    title = figure._suptitle.get_text() if figure._suptitle is not None else None
    return _small({"type": "superchart", "title": title, "elements": charts})


def _axes_chart(ax):
    chart = {"title": ax.get_title() or None}
    wedges = [p for p in ax.patches if type(p).__name__ == "Wedge"]
    if wedges:
        chart.update(type="pie", elements=_pie(wedges))
        return chart
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        label = axis.get_label_text() or None
        unit = _UNIT.search(label or "")
        chart.update({name + "_label": label, name + "_unit": unit.group(1) if unit else None})
    bars = [c for c in ax.containers if type(c).__name__ == "BarContainer"]
    boxes = _boxes(ax)
    points = [c for c in ax.collections if type(c).__name__ == "PathCollection"]
    lines = [l for l in ax.lines if len(l.get_xdata())]
    if bars:
        chart.update(type="bar", elements=_bars(ax, bars))
    elif boxes:
        chart.update(type="box_and_whisker", elements=boxes)
    elif points and not lines:
        chart.update(type="scatter", elements=[
            {"label": _label(c), "points": [[_on(ax.xaxis, x), _on(ax.yaxis, y)] for x, y in c.get_offsets().tolist()]} for c in points])
    elif lines:
        chart.update(type="line", elements=[
            {"label": _label(l), "points": [[_on(ax.xaxis, x), _on(ax.yaxis, y)] for x, y in l.get_xydata().tolist()]} for l in lines])
    else:
        chart.update(type="unknown", elements=[])
    if chart["type"] in ("line", "scatter"):
        for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
            chart[name + "_ticks"] = [_on(axis, t) for t in axis.get_ticklocs()]
            chart[name + "_tick_labels"] = [t.get_text() for t in axis.get_ticklabels()]
            chart[name + "_scale"] = _scale(axis)
    return chart


def _label(artist):
    """Returns the label of a line or of points; matplotlib's own names for those without one begin with _."""
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _converter(axis):
    get = getattr(axis, "get_converter", None)
    return type(get() if get else axis.converter).__name__


def _scale(axis):
    kind = _converter(axis)
    if "Date" in kind:
        return "datetime"
    return "categorical" if "Category" in kind else axis.get_scale()


def _on(axis, position):
    """Returns the value at a position of an axis."""
    if position is None:    # of a point that is not drawn
        return None
    position = float(position)
    kind = _scale(axis)
    if kind == "datetime":
        import matplotlib.dates
        return matplotlib.dates.num2date(position).replace(tzinfo=None).isoformat()
    if kind == "categorical":
        for name, at in axis.units._mapping.items():
            if at == position:
                return name
    return _plain(position)


def _pie(wedges):
    return [{"label": _label(w), "angle": _plain(float(w.theta2 - w.theta1)), "radius": _plain(float(w.r))} for w in wedges]


def _tick_names(axis):
    """Returns the texts of the ticks of an axis by their rounded position."""
    return {round(float(at), 6): t.get_text() for at, t in zip(axis.get_ticklocs(), axis.get_ticklabels())}


def _bars(ax, bars):
    elements = []
    for bar in bars:
        flat = getattr(bar, "orientation", "vertical") == "horizontal"
        axis = ax.yaxis if flat else ax.xaxis
        names = _tick_names(axis)
        for patch in bar.patches:
            middle = patch.get_y() + patch.get_height() / 2 if flat else patch.get_x() + patch.get_width() / 2
            name = names.get(round(float(middle), 6)) or str(_on(axis, float(middle)))
            value = patch.get_width() if flat else patch.get_height()
            elements.append({"label": name, "group": _label(bar), "value": _plain(float(value))})
    return elements


def _boxes(ax):
    """Returns the boxes of a box plot. It is drawn as lines: a box, two whiskers, two caps, the median and the outliers."""
    lines, elements, at = ax.lines, [], 0
    names = _tick_names(ax.xaxis)
    while at + 6 <= len(lines):
        xs, ys = lines[at].get_xdata(), lines[at].get_ydata()
        if len(xs) != 5 or xs[0] != xs[-1] or ys[0] != ys[-1]:
            return []
        whiskers = [float(y) for line in lines[at + 1:at + 3] for y in line.get_ydata()]
        outliers, size = [], 6
        if at + 6 < len(lines) and len(lines[at + 6].get_xdata()) != 5:
            outliers, size = [_plain(float(y)) for y in lines[at + 6].get_ydata()], 7
        elements.append({
            "label": names.get(round(float(min(xs) + max(xs)) / 2, 6), ""), "min": _plain(min(whiskers)), "max": _plain(max(whiskers)),
            "first_quartile": _plain(float(min(ys))), "third_quartile": _plain(float(max(ys))),
            "median": _plain(float(lines[at + 5].get_ydata()[0])), "outliers": outliers,
        })
        at += size
    return elements if at == len(lines) else []

package e2b

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/session"
)

// maxLogs is the number of lines of a log in one answer.
const maxLogs = 1000

// logEntry is one event of a session as a line of a log.
type logEntry struct {
	Time    time.Time         `json:"timestamp"`
	Message string            `json:"message"`
	Level   string            `json:"level"`
	Fields  map[string]string `json:"fields"`
}

// levels are the levels of lines, the least important first.
var levels = []string{"debug", "info", "warn", "error"}

func describeEvent(e session.Event) logEntry {
	l := logEntry{Time: e.Time, Message: e.Kind, Level: "info", Fields: map[string]string{"event": e.Kind}}
	for _, more := range []string{string(e.State), e.Attrs["action"], e.Reason} {
		if more != "" {
			l.Message += " " + more
		}
	}
	if e.Op != "" {
		l.Fields["operation"] = e.Op
	}
	maps.Copy(l.Fields, e.Attrs)
	switch {
	case e.Attrs["error"] != "":
		l.Level = "error"
	case e.Kind == "incident" || e.Kind == "denied":
		l.Level = "warn"
	}
	return l
}

// logs answers with the events of the session. A line has the time in milliseconds as its cursor.
func (c *call) logs(ses *session.Session, first bool) error {
	q := c.r.URL.Query()
	limit := maxLogs
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxLogs {
			return invalid("limit is not a number from 0 to 1000")
		}
		limit = n
	}
	least := max(0, slices.Index(levels, q.Get("level")))
	if level := q.Get("level"); level != "" && !slices.Contains(levels, level) {
		return invalid("level is none of " + strings.Join(levels, ", "))
	}
	cursor := "cursor"
	if first {
		cursor = "start"
	}
	from, err := unixTime(c.r, cursor, time.Millisecond)
	if err != nil {
		return err
	}
	back := false
	switch q.Get("direction") {
	case "", "forward":
	case "backward":
		back = true
	default:
		return invalid("direction is neither forward nor backward")
	}
	out := []logEntry{}
	for e, err := range ses.Events(c.r.Context(), session.EventsOptions{}) {
		if err != nil {
			return err
		}
		l := describeEvent(e)
		before := back && !from.IsZero() && !l.Time.Before(from) || !back && l.Time.Before(from)
		if !before && slices.Index(levels, l.Level) >= least && strings.Contains(l.Message, q.Get("search")) {
			out = append(out, l)
		}
	}
	if back {
		slices.Reverse(out)
	}
	out = out[:min(len(out), limit)]
	if !first {
		return c.reply(http.StatusOK, struct {
			Logs []logEntry `json:"logs"`
		}{out})
	}
	type line struct {
		Time time.Time `json:"timestamp"`
		Line string    `json:"line"`
	}
	lines := []line{}
	for _, l := range out {
		lines = append(lines, line{l.Time, l.Message})
	}
	return c.reply(http.StatusOK, struct {
		Logs    []line     `json:"logs"`
		Entries []logEntry `json:"logEntries"`
	}{lines, out})
}

package e2b

import (
	"context"
	"net/http"
	"strconv"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// cpuWindow is how long the use of the processors is measured.
const cpuWindow = 250 * time.Millisecond

// load is what a sandbox uses.
type load struct {
	guest *v1.Guest
	cpu   float64 // percentage of its processors
	at    time.Time
}

// measure returns what a sandbox uses now.
func measure(ctx context.Context, ses *session.Session) (load, error) {
	first, err := ses.Guest(ctx)
	if err != nil {
		return load{}, err
	}
	select {
	case <-time.After(cpuWindow):
	case <-ctx.Done():
		return load{}, ctx.Err()
	}
	l := load{at: time.Now()}
	if l.guest, err = ses.Guest(ctx); err != nil {
		return load{}, err
	}
	if passed := l.guest.Uptime - first.Uptime; passed > 0 && l.guest.CPUs > 0 {
		used := l.guest.CPUTime - first.CPUTime
		l.cpu = min(100, max(0, 100*used.Seconds()/passed.Seconds()/float64(l.guest.CPUs)))
	}
	return l, nil
}

// metric is one measurement, as the control plane answers it.
type metric struct {
	Time      time.Time `json:"timestamp"`
	Unix      int64     `json:"timestampUnix"`
	CPUs      int       `json:"cpuCount"`
	CPU       float64   `json:"cpuUsedPct"`
	Memory    int64     `json:"memTotal"`
	MemUsed   int64     `json:"memUsed"`
	MemCached int64     `json:"memCache"`
	Disk      int64     `json:"diskTotal"`
	DiskUsed  int64     `json:"diskUsed"`
}

// metrics returns one measurement, taken now: earlier ones are not kept. For a paused sandbox it returns none.
func (c *call) metrics(ses *session.Session) error {
	out := []metric{}
	from, err := unixTime(c.r, "start", time.Second)
	if err != nil {
		return err
	}
	to, err := unixTime(c.r, "end", time.Second)
	if err != nil {
		return err
	}
	now := time.Now()
	wanted := (from.IsZero() || !from.After(now)) && (to.IsZero() || !to.Before(now.Add(-time.Second)))
	if wanted && ses.Info().State != v1.StateHibernated {
		l, err := measure(c.r.Context(), ses)
		if err != nil {
			return err
		}
		g := l.guest
		out = append(out, metric{
			Time: l.at.UTC(), Unix: l.at.Unix(),
			CPUs: g.CPUs, CPU: l.cpu,
			Memory: g.Memory, MemUsed: g.MemoryUsed, MemCached: g.MemoryCached,
			Disk: g.Disk, DiskUsed: g.DiskUsed,
		})
	}
	return c.reply(http.StatusOK, out)
}

// unixTime returns a time in a query parameter, as a number of units since 1970; zero: it is missing.
func unixTime(r *http.Request, name string, unit time.Duration) (time.Time, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > never.Unix()*int64(time.Second/unit) {
		return time.Time{}, invalid(name + " is not a time")
	}
	return time.UnixMilli(n * int64(unit/time.Millisecond)), nil
}

// metrics measures a sandbox from its inside.
func (d *inside) metrics() error {
	l, err := measure(d.r.Context(), d.ses)
	if err != nil {
		return err
	}
	g := l.guest
	return d.reply(struct {
		Time       int64   `json:"ts"`
		CPUs       int     `json:"cpu_count"`
		CPU        float64 `json:"cpu_used_pct"`
		Memory     int64   `json:"mem_total"`
		MemUsed    int64   `json:"mem_used"`
		MemCached  int64   `json:"mem_cache"`
		MemoryMiB  int64   `json:"mem_total_mib"`
		MemUsedMiB int64   `json:"mem_used_mib"`
		Disk       int64   `json:"disk_total"`
		DiskUsed   int64   `json:"disk_used"`
	}{
		l.at.Unix(), g.CPUs, l.cpu, g.Memory, g.MemoryUsed, g.MemoryCached, g.Memory >> 20, g.MemoryUsed >> 20, g.Disk,
		g.DiskUsed,
	})
}

package e2b

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/session"
)

// never is the end of a sandbox without one.
var never = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

const (
	stateRunning = wire.StateRunning
	statePaused  = wire.StatePaused
)

func describe(i session.Info) details {
	d := details{
		Sandbox:  i.Key.Name,
		Template: templateOf(i),
		Client:   "recluse",
		Started:  i.Created,
		End:      never,
		Version:  envdVersion,
		State:    stateRunning,
		CPUs:     i.Spec.Limits.CPUs,
		Memory:   i.Spec.Limits.Memory >> 20,
		Disk:     i.Spec.Limits.Disk >> 20,
		Metadata: map[string]string{},
	}
	if i.Expires != nil {
		d.End = *i.Expires
	}
	if i.State == v1.StateHibernated || i.State == v1.StatePaused {
		d.State = statePaused
	}
	for name, value := range i.Labels {
		if !strings.HasPrefix(name, ownLabels) {
			d.Metadata[name] = value
		}
	}
	return d
}

func (c *call) show(ses *session.Session) error {
	i := ses.Info()
	d := describe(i)
	d.Domain = c.domain(c.r)
	network, internet := networkOf(i)
	d.Network, d.Internet = &network, &internet
	d.Lifecycle = &lifecycle{OnTimeout: "kill", AutoResume: i.Labels[labelResume] == "true"}
	if i.Policy.OnExpiry == v1.ExpiryHibernate {
		d.Lifecycle.OnTimeout = "pause"
	}
	return c.reply(http.StatusOK, d)
}

// list returns a page of the sandboxes of the tenant, newest first. The first version of the API has running ones only,
// on one page.
func (c *call) list(first bool) error {
	q := c.r.URL.Query()
	for name := range q {
		if !slices.Contains(
			[]string{"metadata", "state", "startedAfter", "template", "order", "limit", "nextToken"}, name,
		) {
			return unsupported("the query parameter " + strconv.Quote(name))
		}
	}
	labels, err := metadataQuery(q.Get("metadata"))
	if err != nil {
		return err
	}
	states := []string{stateRunning, statePaused}
	if first {
		states = states[:1]
	}
	if given := q["state"]; len(given) > 0 {
		states = strings.Split(strings.Join(given, ","), ",")
	}
	var after time.Time
	if text := q.Get("startedAfter"); text != "" {
		if after, err = time.Parse(time.RFC3339, text); err != nil {
			return invalid("startedAfter is not a time")
		}
	}
	found := []details{}
	running := 0
	for i, err := range c.manager.List(c.r.Context(), session.ListOptions{Tenant: c.tenant, Labels: labels}) {
		if err != nil {
			return err
		}
		d := describe(i)
		if i.State == v1.StateCreating || i.State == v1.StateEnding || i.State == v1.StateLost {
			continue
		}
		if d.State == stateRunning {
			running++
		}
		if slices.Contains(states, d.State) && (after.IsZero() || d.Started.After(after)) &&
			(q.Get("template") == "" || q.Get("template") == d.Template) {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b details) int {
		return cmp.Or(b.Started.Compare(a.Started), strings.Compare(a.Sandbox, b.Sandbox))
	})
	switch q.Get("order") {
	case "", "desc":
	case "asc":
		slices.Reverse(found)
	default:
		return invalid("order is neither asc nor desc")
	}
	c.w.Header().Set("X-Total-Running", strconv.Itoa(running))
	if first {
		return c.reply(http.StatusOK, found)
	}
	page, err := page(c, found, func(d details) string { return d.Sandbox })
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, page)
}

// metadataQuery parses a query in a query parameter, whose names and values are encoded once more.
func metadataQuery(text string) (map[string]string, error) {
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, invalid("metadata is not a query string")
	}
	labels := map[string]string{}
	for name := range values {
		n, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(values.Get(name))
		if err1 != nil || err2 != nil {
			return nil, invalid("metadata is not a query string")
		}
		labels[n] = value
	}
	return labels, nil
}

// maxPage is the number of entries of a page.
const maxPage = 100

// page returns the requested page of a sorted list, and announces the next one. A token names the last entry before the
// page.
func page[T any](c *call, all []T, name func(T) string) ([]T, error) {
	q := c.r.URL.Query()
	limit := maxPage
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return nil, invalid("limit is not a number from 1 to 100")
		}
		limit = n
	}
	if after := q.Get("nextToken"); after != "" {
		at := slices.IndexFunc(all, func(e T) bool { return name(e) == after })
		if at < 0 {
			return nil, invalid("the entry that nextToken names has ended; start with the first page")
		}
		all = all[at+1:]
	}
	if len(all) > limit {
		all = all[:limit]
		c.w.Header().Set(wire.HeaderNext, name(all[limit-1]))
	}
	return all, nil
}

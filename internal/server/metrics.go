package server

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/diskuse"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/pool"
	"github.com/recluse-dev/recluse/session"
)

// scrapeTimeout bounds the time to count all sessions.
const scrapeTimeout = 10 * time.Second

// metrics holds the metrics for Prometheus. Every label has a small, fixed set of values. Names of sessions, tenants
// and keys are never labels.
type metrics struct {
	registry *prometheus.Registry
	inFlight prometheus.Gauge
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	creates  *prometheus.HistogramVec
	runs     *prometheus.HistogramVec
	failures *prometheus.CounterVec
}

// The buckets cover the range from a cell in a warm sandbox to the pull of an image.
var (
	fastBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	makeBuckets = []float64{.01, .025, .05, .1, .2, .5, 1, 2.5, 5, 10, 30, 60}
)

func newMetrics(m *session.Manager, space func() (diskuse.Space, bool)) *metrics {
	x := &metrics{
		registry: prometheus.NewRegistry(),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "recluse_http_requests_in_flight",
			Help: "Requests in progress.",
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "recluse_http_requests_total",
			Help: "Requests, by route and status.",
		}, []string{"method", "route", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "recluse_http_request_seconds",
			Help:    "Time to answer a request, including streams.",
			Buckets: fastBuckets,
		}, []string{"method", "route"}),
		creates: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "recluse_session_create_seconds",
			Help:    "Time to create a session.",
			Buckets: makeBuckets,
		}, []string{"backend"}),
		runs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "recluse_run_seconds",
			Help:    "Time from the request of a cell or command to its verdict.",
			Buckets: fastBuckets,
		}, []string{"kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "recluse_run_failures_total",
			Help: "Cells and commands without a verdict, by error code.",
		}, []string{"kind", "code"}),
	}
	x.registry.MustRegister(x.inFlight, x.requests, x.took, x.creates, x.runs, x.failures, &sessionCollector{m, space},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return x
}

func (x *metrics) request(r *route, status int, took time.Duration) {
	x.requests.WithLabelValues(r.method, r.path, strconv.Itoa(status)).Inc()
	x.took.WithLabelValues(r.method, r.path).Observe(took.Seconds())
}

func (x *metrics) created(backend string, took time.Duration) {
	x.creates.WithLabelValues(backend).Observe(took.Seconds())
}

func (x *metrics) ran(kind string, v *sandbox.Verdict, err error, took time.Duration) {
	if v == nil {
		x.failures.WithLabelValues(kind, string(v1.CodeOf(err))).Inc()
		return
	}
	x.runs.WithLabelValues(kind).Observe(took.Seconds())
}

func metricsPage(c *call) error {
	promhttp.HandlerFor(c.s.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(c.w, c.r)
	return nil
}

// sessionCollector collects the metrics of sessions and pools. It counts on every scrape, so that the values are never
// stale.
type sessionCollector struct {
	m     *session.Manager
	space func() (diskuse.Space, bool)
}

var (
	descSessions = prometheus.NewDesc("recluse_sessions",
		"Sessions that hold their key, by state and backend.", []string{"state", "backend"}, nil)
	descRestored = prometheus.NewDesc("recluse_sessions_restored",
		"Live sessions that were restored from a snapshot at least once.", nil, nil)
	descEntered = prometheus.NewDesc("recluse_session_changes_total",
		"Sessions that entered a state, such as hibernated, lost or expired.", []string{"state"}, nil)
	descEnds = prometheus.NewDesc("recluse_run_ends_total",
		"Cells and commands, including background commands, by how they ended.", []string{"kind", "ended"}, nil)
	descConnections = prometheus.NewDesc("recluse_network_connections_total",
		"Connections of sandboxes, by what the network policy decided.", []string{"action"}, nil)
	descLookups = prometheus.NewDesc("recluse_network_denied_lookups_total",
		"Look-ups by sandboxes of names that the network policy does not allow.", nil, nil)
	descBytes = prometheus.NewDesc("recluse_network_bytes_total",
		"Bytes of connections of sandboxes that have ended.", []string{"direction"}, nil)
	descDiskFree = prometheus.NewDesc("recluse_disk_free_bytes",
		"Free bytes of the file system of the data directory.", nil, nil)
	descDiskSize = prometheus.NewDesc("recluse_disk_size_bytes",
		"Size of the file system of the data directory.", nil, nil)
	descDiskLow = prometheus.NewDesc("recluse_disk_low",
		"1 if so little space is free that some should be freed, else 0.", nil, nil)
	descReady = prometheus.NewDesc("recluse_pool_ready",
		"Sandboxes in the pool that are ready.", []string{"backend"}, nil)
	descMaking = prometheus.NewDesc("recluse_pool_making",
		"Sandboxes that are being made for the pool.", []string{"backend"}, nil)
	descTaken = prometheus.NewDesc("recluse_pool_taken_total",
		"Sandboxes taken from the pool (hit) or made on demand (miss).", []string{"backend", "how"}, nil)
	descFailed = prometheus.NewDesc("recluse_pool_failed_total",
		"Sandboxes of the pool that died while they waited, or could not be made.", []string{"backend", "how"}, nil)
)

// Describe implements prometheus.Collector.
func (n *sessionCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descSessions, descRestored, descEntered, descEnds, descConnections, descLookups, descBytes, descReady,
		descMaking, descTaken, descFailed, descDiskFree, descDiskSize, descDiskLow,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (n *sessionCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	type group struct {
		state   session.State
		backend string
	}
	count := map[group]int{}
	restored := 0
	for i, err := range n.m.List(ctx, session.ListOptions{Tenant: allTenants}) {
		if err != nil {
			ch <- prometheus.NewInvalidMetric(descSessions, err)
			return
		}
		count[group{i.State, i.Backend}]++
		if i.Restored > 0 {
			restored++
		}
	}
	for g, c := range count {
		ch <- prometheus.MustNewConstMetric(descSessions, prometheus.GaugeValue, float64(c), string(g.state), g.backend)
	}
	ch <- prometheus.MustNewConstMetric(descRestored, prometheus.GaugeValue, float64(restored))
	for state, c := range n.m.EnteredStates() {
		ch <- prometheus.MustNewConstMetric(descEntered, prometheus.CounterValue, float64(c), string(state))
	}
	for e, c := range n.m.EndedOperations() {
		ch <- prometheus.MustNewConstMetric(descEnds, prometheus.CounterValue, float64(c), e.Kind, string(e.Ended))
	}
	n.network(ch, n.m.NetworkStats())
	if space, ok := n.space(); ok {
		low := 0.0
		if space.Low() {
			low = 1
		}
		ch <- prometheus.MustNewConstMetric(descDiskFree, prometheus.GaugeValue, float64(space.Free))
		ch <- prometheus.MustNewConstMetric(descDiskSize, prometheus.GaugeValue, float64(space.Total))
		ch <- prometheus.MustNewConstMetric(descDiskLow, prometheus.GaugeValue, low)
	}
	for backend, p := range n.m.PoolStats() {
		n.pool(ch, backend, p)
	}
}

func (n *sessionCollector) pool(ch chan<- prometheus.Metric, backend string, p pool.Stats) {
	ch <- prometheus.MustNewConstMetric(descReady, prometheus.GaugeValue, float64(p.Ready), backend)
	ch <- prometheus.MustNewConstMetric(descMaking, prometheus.GaugeValue, float64(p.Making), backend)
	ch <- prometheus.MustNewConstMetric(descTaken, prometheus.CounterValue, float64(p.Hits), backend, "hit")
	ch <- prometheus.MustNewConstMetric(descTaken, prometheus.CounterValue, float64(p.Misses), backend, "miss")
	ch <- prometheus.MustNewConstMetric(descFailed, prometheus.CounterValue, float64(p.Died), backend, "died")
	ch <- prometheus.MustNewConstMetric(descFailed, prometheus.CounterValue, float64(p.Failed), backend, "not made")
}

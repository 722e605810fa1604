package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/krmcat/krmcat/catalog/index"
)

// serverMetrics are what a server tells Prometheus.
type serverMetrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
}

// newServerMetrics makes the metrics of a server; stats is asked at each
// scrape.
func newServerMetrics(stats func(context.Context) (index.Stats, error)) *serverMetrics {
	m := &serverMetrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "krmcat_http_request_duration_seconds",
			Help:    "Time to answer a request, by the pattern of its route.",
			Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10, 60},
		}, []string{"route", "method", "code"}),
	}
	m.registry.MustRegister(m.requests, &indexCollector{stats}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observe takes note of a request. The method is one of those that the server
// knows, so that nobody can make up label values.
func (m *serverMetrics) observe(method, route string, status int, seconds float64) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Observe(seconds)
}

// serve answers at /metrics until the context is done.
func (m *serverMetrics) serve(ctx context.Context, l net.Listener, log *slog.Logger) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, WriteTimeout: 30 * time.Second, MaxHeaderBytes: maxHeaderBytes}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() }) // nobody waits for a scrape
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.ErrorContext(ctx, "metrics are not served any more", "error", err)
	}
}

var (
	descUp         = prometheus.NewDesc("krmcat_index_up", "Whether the index answers.", nil, nil)
	descFunctions  = prometheus.NewDesc("krmcat_functions", "Functions that are listed.", nil, nil)
	descReleases   = prometheus.NewDesc("krmcat_function_tags", "Tags of functions, releases and others.", nil, nil)
	descPublishers = prometheus.NewDesc("krmcat_publishers", "Publishers of functions.", nil, nil)
	descCatalogs   = prometheus.NewDesc("krmcat_pushed_catalogs", "Catalogs that were pushed, by name.", nil, nil)
	descProblems   = prometheus.NewDesc("krmcat_unreadable_documents", "Definitions and catalogs that cannot be read and are not shown.", nil, nil)
	descPending    = prometheus.NewDesc("krmcat_index_pending_changes", "Changes of the registry that the index has not taken in yet.", nil, nil)
	descChanged    = prometheus.NewDesc("krmcat_index_changed_timestamp_seconds", "When what is shown changed last.", nil, nil)
)

// indexCollector asks the index at each scrape.
type indexCollector struct {
	stats func(context.Context) (index.Stats, error)
}

// Describe lists the metrics.
func (c *indexCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descUp, descFunctions, descReleases, descPublishers, descCatalogs, descProblems, descPending, descChanged} {
		ch <- d
	}
}

// Collect reads the metrics.
func (c *indexCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	s, err := c.stats(ctx)
	if err != nil {
		gauge(descUp, 0)
		return
	}
	gauge(descUp, 1)
	gauge(descFunctions, float64(s.Functions))
	gauge(descReleases, float64(s.Releases))
	gauge(descPublishers, float64(s.Publishers))
	gauge(descCatalogs, float64(s.Catalogs))
	gauge(descProblems, float64(s.Problems))
	gauge(descPending, float64(s.Pending))
	if !s.Changed.IsZero() {
		gauge(descChanged, float64(s.Changed.UnixMilli())/1000)
	}
}

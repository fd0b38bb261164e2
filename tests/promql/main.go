// Command promql evaluates expressions with Prometheus's own engine, on metrics as an exporter
// printed them. It reads one JSON document from stdin and prints one to stdout.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

type scrape struct {
	Seconds int64  `json:"seconds"`
	Text    string `json:"text"`
}

type request struct {
	Scrapes []scrape `json:"scrapes"`
	Rules   string   `json:"rules"`
	Queries []string `json:"queries"`
	At      int64    `json:"at"`
}

type sample struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

type answer struct {
	Queries [][]sample          `json:"queries"`
	Firing  map[string][]sample `json:"firing"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	db, seen := store{}, map[string]labels.Labels{}
	var err error
	for _, each := range asked.Scrapes {
		if seen, err = db.add(each, seen); err != nil {
			return fmt.Errorf("scrape at %d s: %w", each.Seconds, err)
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute})
	defer engine.Close()
	at := time.Unix(asked.At, 0)
	made := answer{Queries: [][]sample{}, Firing: map[string][]sample{}}
	for _, expression := range asked.Queries {
		found, err := instant(engine, db, expression, at)
		if err != nil {
			return fmt.Errorf("%s: %w", expression, err)
		}
		made.Queries = append(made.Queries, found)
	}
	if asked.Rules != "" {
		groups, problems := rulefmt.Parse([]byte(asked.Rules), false)
		if len(problems) > 0 {
			return errors.Join(problems...)
		}
		for _, group := range groups.Groups {
			for _, rule := range group.Rules {
				found, err := firing(engine, db, rule, at)
				if err != nil {
					return fmt.Errorf("%s: %w", rule.Alert, err)
				}
				made.Firing[rule.Alert] = found
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(made)
}

// store holds the samples of each series; promql reads it as a storage.Queryable.
type store map[string]*kept

type kept struct {
	labels  labels.Labels
	samples []chunks.Sample
}

type point struct {
	at    int64
	value float64
}

func (p point) T() int64                      { return p.at }
func (p point) F() float64                    { return p.value }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }

// Querier answers with the series that match, in the order of their labels.
func (s store) Querier(from, to int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(
		_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher,
	) storage.SeriesSet {
		found := []storage.Series{}
		for _, name := range slices.Sorted(maps.Keys(s)) {
			if matches(s[name].labels, matchers) {
				found = append(found, storage.NewListSeries(s[name].labels, s[name].samples))
			}
		}
		return &set{found: found, at: -1}
	}}, nil
}

type set struct {
	found []storage.Series
	at    int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.found) }
func (s *set) At() storage.Series                { return s.found[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

func matches(series labels.Labels, matchers []*labels.Matcher) bool {
	for _, each := range matchers {
		if !each.Matches(series.Get(each.Name)) {
			return false
		}
	}
	return true
}

func (s store) put(series labels.Labels, seconds int64, number float64) {
	name := series.String()
	if s[name] == nil {
		s[name] = &kept{labels: series}
	}
	s[name].samples = append(s[name].samples, point{seconds * 1000, number})
}

// add adds one scrape, with a stale marker for each series that the one before had, as Prometheus
// does, and returns its series.
func (s store) add(given scrape, before map[string]labels.Labels) (map[string]labels.Labels, error) {
	parser := textparse.NewPromParser([]byte(given.Text), labels.NewSymbolTable(), false)
	seen := map[string]labels.Labels{}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var series labels.Labels
		_, _, number := parser.Series()
		parser.Labels(&series)
		seen[series.String()] = series
		s.put(series, given.Seconds, number)
	}
	for name, series := range before {
		if _, there := seen[name]; !there {
			s.put(series, given.Seconds, math.Float64frombits(value.StaleNaN))
		}
	}
	return seen, nil
}

func instant(engine *promql.Engine, db storage.Queryable, expression string, at time.Time) ([]sample, error) {
	query, err := engine.NewInstantQuery(context.Background(), db, nil, expression, at)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(context.Background())
	vector, err := result.Vector()
	if err != nil {
		return nil, err
	}
	found := []sample{}
	for _, each := range vector {
		found = append(found, sample{each.Metric.Map(), each.F})
	}
	return found, nil
}

// firing returns the series of an alert that have held for as long as it demands: those that the
// expression gives at every evaluation, one in 30 s as Prometheus does it.
func firing(engine *promql.Engine, db storage.Queryable, rule rulefmt.Rule, at time.Time) ([]sample, error) {
	held, err := instant(engine, db, rule.Expr, at)
	if err != nil {
		return nil, err
	}
	for back := time.Duration(0); back <= time.Duration(rule.For); back += 30 * time.Second {
		before, err := instant(engine, db, rule.Expr, at.Add(-back))
		if err != nil {
			return nil, err
		}
		kept := []sample{}
		for _, each := range held {
			for _, other := range before {
				if maps.Equal(each.Labels, other.Labels) {
					kept = append(kept, each)
				}
			}
		}
		held = kept
	}
	for position := range held {
		delete(held[position].Labels, "__name__")
		held[position].Labels["severity"] = rule.Labels["severity"]
	}
	return held, nil
}

package server

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// param is a query parameter.
type param struct {
	name, kind, doc string
	required        bool
	least, most     int64 // bounds of an integer; most 0: no upper bound
}

func text(name, doc string) param   { return param{name: name, kind: "string", doc: doc} }
func flag(name, doc string) param   { return param{name: name, kind: "boolean", doc: doc} }
func number(name, doc string) param { return param{name: name, kind: "integer", doc: doc} }

// Sizes of pages.
const (
	defaultPage = 100
	maxPage     = 1000
)

// Parameters that several routes have.
var (
	qPath = param{
		name: "path",
		kind: "string",
		doc: "absolute path, or relative to the working directory of the sandbox, which is the home directory by " +
			"default; percent-encoded bytes",
		required: true,
	}
	qRoot  = text("root", "confine the request to this directory; all paths then start there")
	qLimit = param{
		name:  "limit",
		kind:  "integer",
		doc:   "maximum number of entries in the answer; 100 if left out",
		least: 1,
		most:  maxPage,
	}
	qAfter = text("after", "value of next in the previous page")
)

// schema describes the values of the parameter in the OpenAPI document.
func (p param) schema() object {
	s := object{"type": p.kind}
	if p.kind == "integer" {
		s["minimum"] = p.least
	}
	if p.most > 0 {
		s["maximum"] = p.most
	}
	return s
}

// check rejects a value of another type. An empty value counts as left out.
func (p param) check(value string) error {
	switch {
	case value == "":
	case p.kind == "boolean":
		if _, err := strconv.ParseBool(value); err != nil {
			return badQuery(p.name, "true or false")
		}
	case p.kind == "integer":
		n, err := strconv.ParseInt(value, 10, 64)
		if err == nil && n >= p.least && (p.most == 0 || n <= p.most) {
			return nil
		}
		if p.most > 0 {
			return badQuery(p.name, fmt.Sprintf("a number from %d to %d", p.least, p.most))
		}
		return badQuery(p.name, fmt.Sprintf("a number, %d or more", p.least))
	}
	return nil
}

func badQuery(name, want string) error {
	return &v1.Error{
		Code:    v1.CodeInvalidQuery,
		Op:      "read request",
		Message: fmt.Sprintf("query parameter %q must be %s", name, want),
	}
}

func missingQuery(name string) error {
	return &v1.Error{
		Code:    v1.CodeInvalidQuery,
		Op:      "read request",
		Message: fmt.Sprintf("missing query parameter %q", name),
	}
}

// readQuery parses the query. It rejects parameters that the route does not have, and values of another type.
func (c *call) readQuery() error {
	if c.route.proxy || c.r.URL.RawQuery == "" && len(c.route.query) == 0 {
		return nil
	}
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return &v1.Error{Code: v1.CodeInvalidQuery, Op: "read request", Message: "invalid query", Err: err}
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.ContainsFunc(c.route.query, func(p param) bool { return p.name == name }) {
			return &v1.Error{
				Code:    v1.CodeInvalidQuery,
				Op:      "read request",
				Message: fmt.Sprintf("unknown query parameter %q", name),
				Remedy:  "/v1/openapi.json lists the parameters",
			}
		}
	}
	for _, p := range c.route.query {
		if p.required && q.Get(p.name) == "" {
			return missingQuery(p.name)
		}
		for _, value := range q[p.name] {
			if err := p.check(value); err != nil {
				return err
			}
		}
	}
	c.query = q
	return nil
}

// flag returns a boolean query parameter, or otherwise if it is missing.
func (c *call) flag(name string, otherwise bool) bool {
	if b, err := strconv.ParseBool(c.query.Get(name)); err == nil {
		return b
	}
	return otherwise
}

// number returns an integer query parameter, or otherwise if it is missing.
func (c *call) number(name string, otherwise int64) int64 {
	if n, err := strconv.ParseInt(c.query.Get(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// page returns the requested size of a page.
func (c *call) page() int { return int(c.number("limit", defaultPage)) }

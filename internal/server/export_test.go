package server

// TestRoute is a line of the table, as tests see it.
type TestRoute struct {
	Method, Path, Scope string
	Operator            bool
}

// TestRoutes gives the whole table.
func (s *Server) TestRoutes() []TestRoute {
	var out []TestRoute
	for _, r := range s.routes {
		out = append(out, TestRoute{r.method, r.path, r.scope.String(), r.operator})
	}
	return out
}

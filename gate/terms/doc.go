// Package terms reports whether a text uses the vocabulary of a field.
//
// A Thesaurus maps terms to the concepts they stand for. A Graph connects the concepts of one role and decides how much
// of a text must be known terms:
//
//	thesaurus, err := terms.Load("kitchen.json")
//	…
//	graph, err := terms.NewGraph(thesaurus, terms.GraphOptions{Strictness: terms.Strict})
//	…
//	report := graph.Review("peel the onion")
//	if report.Objection != nil {
//		fmt.Println(report.Objection.Message, report.Suggestions)
//	}
//
// Terms are found at word boundaries, in upper or lower case, leftmost and longest first.
package terms

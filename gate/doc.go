// Package gate judges code before it runs.
//
// The gate is a seat belt; the sandbox is the wall. Code that means harm can be written so that nobody
// sees it by reading, so nothing here replaces isolation. What a gate does well is stop the honest
// mistake of a model early, and say why in words from which the model can do better.
//
// Two judges look at a Request. Rules parse the code, bash and Python, and compare what it would do with
// a readable list. A Graph knows the terms of a field and asks whether the code speaks of it.
// A Checker holds both, counts the tries of each session and calls a person when a
// session keeps failing:
//
//	rules, err := gate.DefaultRules()
//	…
//	c, err := gate.New(gate.Options{Rules: rules, RulesMode: gate.ModeBlock})
//	…
//	defer c.Close()
//	d, err := c.Judge(ctx, gate.Request{Language: gate.Bash, Code: "rm -rf /"})
//	fmt.Println(d.Action, d.Findings[0]) // deny line 1: removes /, which the machine needs: rule no-root-removal
//
// What cannot be decided by reading (a command whose name comes from the network, say) is reported as
// undecidable, never passed over in silence.
package gate

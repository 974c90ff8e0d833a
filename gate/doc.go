// Package gate judges code before it runs.
//
// The gate does not replace isolation: harmful code can be written so that no reader recognizes it. The sandbox is the
// security boundary. The gate stops unintended mistakes of a model early, and explains them so that the model can
// correct its code.
//
// A Checker judges a Request with two judges. Rules (package gate/rules) are compared with what the parsed code would
// do. A graph of terms (package gate/terms) reports whether the code is about the field of its role. The Checker counts
// the failures of each session, and asks a person for approval when a session keeps failing:
//
//	set, err := rules.Default()
//	…
//	c, err := gate.New(gate.Options{Rules: set, RulesMode: gate.ModeBlock})
//	…
//	defer c.Close()
//	d, err := c.Judge(ctx, gate.Request{Language: gate.Bash, Code: "rm -rf /"})
//	fmt.Println(d.Action, d.Findings[0]) // deny line 1: removes /, which the machine needs: rule no-root-removal
//
// Behaviour that static analysis cannot determine (for example a command whose name comes from the network) is reported
// as undecidable.
package gate

// Package rules compares what code would do with a readable list of rules.
//
// Code is parsed and never run: bash by mvdan.cc/sh, Python by Python's own ast in a process with limits. The parse
// tree is walked with the values that reading can determine (variables, branches, loops over known lists, functions,
// eval, files that the code wrote itself). This yields facts: commands run, functions called, files read and written.
// Rules are conditions on facts.
//
//	set, err := rules.Default()
//	…
//	analyzer := rules.NewAnalyzer(set, "")
//	defer analyzer.Close()
//	findings, err := analyzer.Findings(ctx, rules.Code{Language: rules.Bash, Text: "d=/; rm -rf $d"})
//	fmt.Println(findings[0]) // line 1: removes /, which the machine needs: rule no-root-removal
//
// Programs are not simulated. Text that static analysis cannot determine (the output of base64, an environment
// variable) is called a hole. A finding that depends on a hole is Undecidable; the rule decides whether it is reported.
// If a whole piece of code or the name of a command is a hole, that is a fact too, and the default rules always report
// it.
package rules

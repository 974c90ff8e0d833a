package v1

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// RunLimits bounds a run with all its child runs. It is the only declaration of these limits: flags, configuration,
// JSON, and the schemas of HTTP and MCP are derived from its fields.
//
// A nil field means the receiver's default. [NoLimit] switches a limit off; zero means zero.
//
// Tags of a field: flag is its name on the command line, doc its description, and minimum the least value of a number.
// The minimum is NoLimit where the limit can be switched off. reason is why a run ends that reaches the limit. To add a
// limit, add a field here and its default to rlm.DefaultLimits, and enforce it in package rlm.
type RunLimits struct {
	Tokens *int64    `json:"tokens,omitempty" flag:"max-tokens" reason:"tokens" minimum:"-1" doc:"tokens of all models together, input and output; -1: unlimited"`
	Cost   *float64  `json:"cost_usd,omitempty" flag:"max-cost" reason:"cost" minimum:"-1" doc:"US dollars that all model calls together may cost; -1: unlimited"`
	Time   *Duration `json:"time,omitempty" flag:"max-time" reason:"time" doc:"time of the run; none: unlimited"`
	Calls  *int64    `json:"calls,omitempty" flag:"max-calls" reason:"calls" minimum:"-1" doc:"model calls, turns included; -1: unlimited"`
	Depth  *int      `json:"depth,omitempty" flag:"depth" minimum:"0" doc:"levels of calls below the run: 0: none; 1: code may call models; 2: code may start child runs"`
	Turns  *int      `json:"turns,omitempty" flag:"max-turns" reason:"turns" minimum:"1" doc:"turns of the run, and of each child"`
	Errors *int      `json:"errors,omitempty" flag:"max-errors" reason:"errors" minimum:"-1" doc:"turns in a row whose code may fail; -1: unlimited"`
	CPU    *Duration `json:"cell_cpu,omitempty" flag:"max-cpu" reason:"cpu" doc:"CPU time of all cells and commands; none: unlimited"`

	CellTime *Duration `json:"cell_time,omitempty" flag:"max-cell-time" doc:"time of one cell or command, without the time in which it waits for models; none: unlimited"`
	Output   *int      `json:"output_chars,omitempty" flag:"max-output" minimum:"1" doc:"characters of a turn's output that the model sees"`
	Reply    *int64    `json:"reply_tokens,omitempty" flag:"max-reply" reason:"length" minimum:"-1" doc:"tokens of one reply, if the model's own maximum is not lower; -1: the model's own maximum"`
	Parallel *int      `json:"parallel,omitempty" flag:"parallel" minimum:"1" doc:"concurrent model calls of the run and its children"`
	Children *int      `json:"parallel_children,omitempty" flag:"parallel-children" minimum:"1" doc:"concurrent child runs at each depth"`
}

// LimitFlag returns the flag that sets the limit for which a run ended, or "" if no limit ends a run for this reason.
func LimitFlag(r RunReason) string {
	for f := range reflect.TypeFor[RunLimits]().Fields() {
		if f.Tag.Get("reason") == string(r) {
			return f.Tag.Get("flag")
		}
	}
	return ""
}

// Limit is one field of a RunLimits or a Quota. It implements the Value interface of package pflag.
type Limit struct {
	Name string // name in JSON
	Flag string // name on the command line
	Doc  string
	Min  *float64 // the least value; nil: zero, or NoLimit

	value reflect.Value // the field, a pointer
	bytes bool          // a size
	zero  bool          // zero is valid on the command line and in the configuration
}

// Fields returns the limits in the order of the struct's fields. Setting one of them sets the field of l.
func (l *RunLimits) Fields() []Limit { return fieldsOf(reflect.ValueOf(l).Elem()) }

// fieldsOf returns the fields of a struct of pointers, as their tags describe them.
func fieldsOf(v reflect.Value) []Limit {
	out := make([]Limit, v.NumField())
	for i := range out {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out[i] = Limit{
			Name:  name,
			Flag:  f.Tag.Get("flag"),
			Doc:   f.Tag.Get("doc"),
			value: v.Field(i),
			bytes: f.Tag.Get("unit") == "bytes",
		}
		if least, err := strconv.ParseFloat(f.Tag.Get("minimum"), 64); err == nil && least != NoLimit {
			out[i].Min = &least
		}
	}
	return out
}

// Over returns l, with unset fields taken from base.
func (l RunLimits) Over(base RunLimits) RunLimits {
	below := base.Fields()
	for i, f := range l.Fields() {
		if !f.IsSet() {
			f.value.Set(below[i].value)
		}
	}
	return l
}

// Exceeds returns the names of the fields of l that are above those of ceiling. A field that is not set in ceiling is
// not bounded.
func (l RunLimits) Exceeds(ceiling RunLimits) []string {
	var names []string
	most := ceiling.Fields()
	for i, f := range l.Fields() {
		if !f.IsSet() || !most[i].IsSet() {
			continue
		}
		if have, bound := f.number(), most[i].number(); bound >= 0 && (have < 0 || have > bound) {
			names = append(names, f.Name)
		}
	}
	return names
}

// Validate reports the first field whose value is out of range.
func (l RunLimits) Validate() error {
	for _, f := range l.Fields() {
		if err := f.validate(); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// IsZero reports whether no field is set.
func (l RunLimits) IsZero() bool { return l == RunLimits{} }

// IsSet reports whether the field has a value.
func (f Limit) IsSet() bool { return f.value.IsValid() && !f.value.IsNil() }

// Set implements pflag.Value. Zero is valid for a bound of a quota, and for a limit whose minimum is zero. For any
// other limit nothing could run.
func (f Limit) Set(text string) error {
	v := reflect.New(f.value.Type().Elem())
	switch p := v.Interface().(type) {
	case *Duration:
		d, err := ParseDuration(text)
		if err != nil {
			return err
		}
		*p = d
	case *float64:
		n, err := strconv.ParseFloat(numeral(text), 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return fmt.Errorf("%q is not a number", text)
		}
		*p = n
	case *int64:
		n, err := strconv.ParseInt(numeral(text), 10, 64)
		if f.bytes && text != none {
			n, err = ParseBytes(text)
			if err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*p = n
	default:
		n, err := strconv.ParseInt(numeral(text), 10, v.Elem().Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		v.Elem().SetInt(n)
	}
	set := f
	set.value = v
	if err := set.validate(); err != nil {
		return err
	}
	if f.Min == nil && !f.zero && set.number() == 0 {
		return fmt.Errorf("%s is not above zero", text)
	}
	f.value.Set(v)
	return nil
}

// numeral replaces the word for NoLimit by its number.
func numeral(text string) string {
	if text == none {
		return strconv.Itoa(NoLimit)
	}
	return text
}

// String implements pflag.Value.
func (f Limit) String() string {
	if !f.IsSet() {
		return ""
	}
	if f.number() == NoLimit {
		return none
	}
	if f.bytes {
		return FormatBytes(f.value.Elem().Int())
	}
	return fmt.Sprint(f.value.Elem().Interface())
}

// Type implements pflag.Value.
func (f Limit) Type() string {
	switch f.value.Type().Elem() {
	case reflect.TypeFor[Duration]():
		return "duration"
	case reflect.TypeFor[float64]():
		return "amount"
	}
	if f.bytes {
		return "size"
	}
	return "number"
}

// number returns the value of a field of any type as a float64. Durations are in nanoseconds, so that NoLimit has the
// same value for all types.
//
// Preconditions: the field is set.
func (f Limit) number() float64 {
	if v := f.value.Elem(); v.Kind() != reflect.Float64 {
		return float64(v.Int())
	}
	return f.value.Elem().Float()
}

// amount formats n like String formats the value of the field.
func (f Limit) amount(n float64) string {
	v := reflect.New(f.value.Type().Elem())
	switch {
	case v.Elem().Kind() == reflect.Float64:
		v.Elem().SetFloat(n)
	case f.bytes && n > 1<<20:
		v.Elem().SetInt(int64(n) &^ (1<<20 - 1)) // round to whole MiB, for people to read
	default:
		v.Elem().SetInt(int64(n))
	}
	f.value = v
	return f.String()
}

func (f Limit) validate() error {
	if !f.IsSet() {
		return nil
	}
	n := f.number()
	switch {
	case math.IsNaN(n):
		return fmt.Errorf("%v is not a number", n)
	case f.Min != nil && n < *f.Min:
		least := "zero"
		if *f.Min != 0 {
			least = fmt.Sprint(*f.Min)
		}
		return fmt.Errorf("%v is below %s", n, least)
	case f.Min == nil && n < 0 && n != NoLimit:
		if f.value.Type().Elem() == reflect.TypeFor[Duration]() {
			return fmt.Errorf("%s is negative; none switches the limit off", time.Duration(n))
		}
		return fmt.Errorf("%v is negative; %d switches the limit off", n, NoLimit)
	}
	return nil
}

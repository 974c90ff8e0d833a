package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/sandbox"
)

// option is a struct field that is a flag. It implements pflag.Value.
//
// Tags of the field:
//   - flag is the name of the flag, and short its letter. A field with several flags has their names with commas.
//   - value is the name of its value in help texts, and doc its description.
//   - enum lists the valid values.
//   - scope is the meaning of the flag for an existing session. Empty: it must equal that of the session.
//     backend: the session must have this backend. command: it is for this command only. server: the configuration of
//     the server decides, so the flag is refused.
//   - backend names the only backend that supports the flag. Help lists the flag only if --backend names that backend.
type option struct {
	field reflect.StructField
	value reflect.Value
	word  string // name of the flag, if the field has several: the action of a network rule
}

// valueOf returns a variable as the value of a flag.
func valueOf(pointer any) option { return option{value: reflect.ValueOf(pointer).Elem()} }

// optionsOf returns the fields of structs that are flags, including those of nested structs.
func optionsOf(structs ...any) (out []option) {
	for _, s := range structs {
		v := reflect.ValueOf(s).Elem()
		for i := range v.NumField() {
			o := option{field: v.Type().Field(i), value: v.Field(i)}
			switch {
			case strings.Contains(o.name(), ","):
				for word := range strings.SplitSeq(o.name(), ",") {
					out = append(out, option{o.field, o.value, word})
				}
			case o.name() != "":
				out = append(out, o)
			case o.value.Kind() == reflect.Struct && o.field.IsExported():
				out = append(out, optionsOf(o.value.Addr().Interface())...)
			}
		}
	}
	return out
}

func (o option) name() string { return cmp.Or(o.word, o.field.Tag.Get("flag")) }

func (o option) scope() string { return o.field.Tag.Get("scope") }

// words returns the valid values. If there are none, any value is valid.
func (o option) words() []string {
	return strings.FieldsFunc(o.field.Tag.Get("enum"), func(r rune) bool { return r == ',' })
}

// register declares the flag. Help lists it in the named group.
func (o option) register(f *pflag.FlagSet, group string) {
	doc := o.field.Tag.Get("doc")
	switch o.value.Interface().(type) {
	case map[string]string:
		doc += "; K alone copies the value from this process (repeatable)"
	case []sandbox.Mount, []sandbox.Volume:
		doc += " (repeatable)"
	case []v1.NetworkRule:
		doc = o.word + " connections to example.com, *.example.com or an address; --allow, --deny and --ask are checked in their order, " +
			"then --net decides (repeatable)"
		if o.word == string(v1.NetworkAsk) {
			doc = "ask a person about connections to a target: they fail until recluse gate grant; only in sessions (repeatable)"
		}
	}
	flag := f.VarPF(o, o.name(), o.field.Tag.Get("short"), doc)
	flag.Annotations = map[string][]string{flagGroup: {group}}
	if only := o.field.Tag.Get("backend"); only != "" {
		flag.Annotations[backendOnly] = []string{only}
	}
	if o.Type() == "bool" {
		flag.NoOptDefVal = "true"
	}
}

// Type returns the name of the value in help texts: a name, or the valid values.
func (o option) Type() string {
	if name := o.field.Tag.Get("value"); name != "" {
		return name
	}
	if words := o.words(); len(words) > 0 {
		return strings.Join(words, "|")
	}
	switch o.value.Interface().(type) {
	case bool, *bool:
		return "bool"
	case int64:
		return "size"
	case map[string]string:
		return "K=V"
	}
	return "number"
}

// shown returns the value as help texts show it: a size with a space and a full unit.
func (o option) shown() string {
	if n, ok := o.value.Interface().(int64); ok && n != 0 {
		return v1.SizeText(n)
	}
	return o.String()
}

// String returns the value in the form that Set parses; pflag shows it as the default.
func (o option) String() string {
	if !o.value.IsValid() || o.value.IsZero() {
		return ""
	}
	switch v := o.value.Interface().(type) {
	case int64:
		return config.Size(v).String()
	default:
		return strings.Trim(fmt.Sprint(v), "[]")
	}
}

// Set parses one value. Numbers must be above zero, because zero would mean the default.
func (o option) Set(text string) error {
	switch p := o.value.Addr().Interface().(type) {
	case *string:
		if words := o.words(); len(words) > 0 && !slices.Contains(words, text) {
			return fmt.Errorf("invalid value %q: want one of %s", text, strings.Join(words, ", "))
		}
		*p = text
	case *v1.NetworkPreset:
		if !slices.Contains(o.words(), text) {
			return fmt.Errorf("invalid value %q: want one of %s", text, strings.Join(o.words(), ", "))
		}
		*p = v1.NetworkPreset(text)
	case *[]v1.NetworkRule:
		*p = append(*p, v1.NetworkRule(o.word+" "+text))
	case *json.RawMessage:
		*p = json.RawMessage(text)
	case *[]string:
		*p = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("invalid value %q: want true or false", text)
		}
		*p = b
	case **bool: // nil where the flag is left out
		*p = new(bool)
		return valueOf(*p).Set(text)
	case **int64: // nil where the flag is left out, so that zero is a value
		if strings.HasPrefix(text, "-") {
			return fmt.Errorf("invalid size %q: must not be negative", text)
		}
		n, err := config.ParseSize(text)
		if err != nil {
			return err
		}
		*p = new(int64(n))
	case **int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("invalid number %q: want an integer", text)
		}
		*p = &n
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 {
			return fmt.Errorf("invalid number %q: want an integer above zero", text)
		}
		*p = n
	case *int64:
		n, err := config.ParseSize(text)
		if err != nil || n == 0 {
			return fmt.Errorf("invalid size %q: want a size above zero, such as 256m or 2g", text)
		}
		*p = int64(n)
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n <= 0 {
			return fmt.Errorf("invalid number %q: want a number above zero", text)
		}
		*p = n
	case *map[string]string:
		k, v, ok := strings.Cut(text, "=")
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				return fmt.Errorf("environment variable %q is not set", k)
			}
		}
		if *p == nil {
			*p = map[string]string{}
		}
		(*p)[k] = v
	case *[]sandbox.Mount:
		m, err := parseMount(text)
		if err != nil {
			return err
		}
		*p = append(*p, m)
	case *[]sandbox.Volume:
		m, err := parseMount(text)
		if err != nil {
			return err
		}
		*p = append(*p, sandbox.Volume{Name: m.Host, Path: m.Path, Writable: m.Writable})
	default:
		panic("field has a type that a flag cannot have: " + o.field.Name)
	}
	return nil
}

// parseMount parses host:path[:rw|:ro]. Host paths that contain a colon are not supported.
func parseMount(s string) (sandbox.Mount, error) {
	parts := strings.Split(s, ":")
	if len(parts) == 3 && (parts[2] == "rw" || parts[2] == "ro") || len(parts) == 2 {
		m := sandbox.Mount{Host: parts[0], Path: parts[1], Writable: len(parts) == 3 && parts[2] == "rw"}
		if m.Host != "" && m.Path != "" {
			return m, nil
		}
	}
	return sandbox.Mount{}, fmt.Errorf("invalid mount %q: want A:B or A:B:rw", s)
}

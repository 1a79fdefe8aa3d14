package config

import (
	"encoding/json"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leaf is a value of a Config that is set as a whole: a scalar, a duration, a
// list or a map.
type leaf struct {
	path  string // as in the file: "iptables.masqueradeBit"
	value reflect.Value
}

// leaves returns all values of c, in the order of the struct.
func leaves(c *Config) []leaf {
	var out []leaf
	collect(reflect.ValueOf(c).Elem(), "", &out)
	return out
}

func collect(v reflect.Value, path string, out *[]leaf) {
	if !isSection(v.Type()) {
		*out = append(*out, leaf{path, v})
		return
	}
	for i := range v.NumField() {
		collect(v.Field(i), join(path, key(v.Type().Field(i))), out)
	}
}

// find returns the value at a path, which must exist.
func find(c *Config, path string) reflect.Value {
	for _, l := range leaves(c) {
		if l.path == path {
			return l.value
		}
	}
	return reflect.Value{}
}

// isSection reports whether a value of type t has keys of its own in the file.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !isDuration(t)
}

func isDuration(t reflect.Type) bool {
	return t == reflect.TypeFor[metav1.Duration]() || t == reflect.TypeFor[FlushFrequency]()
}

// key returns the name of a field in the file.
func key(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// parent removes the last element of a path: "a.b[1]" → "a.b" → "a" → "".
func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// text returns a value as JSON on one line.
func text(v reflect.Value) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v.Interface()); err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(b.String(), "\n")
}

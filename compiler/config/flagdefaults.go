package config

import (
	"cmp"
	"reflect"
	"strings"
)

// FlagDefaults returns the effective value of each flag without the flag and
// without a configuration file, by the flag's name. Flags without a default are
// omitted.
func FlagDefaults() map[string]string {
	values := map[string]reflect.Value{}
	for _, l := range leaves(Default()) {
		values[l.path] = l.value
	}
	depends := map[string]string{}
	for _, f := range Fields() {
		depends[f.Path] = strings.ReplaceAll(f.Depends, "`", "")
	}
	out := map[string]string{}
	for f := range reflect.TypeFor[Flags]().Fields() {
		name, path := f.Tag.Get("name"), cmp.Or(f.Tag.Get("config"), f.Tag.Get("like"))
		v, ok := values[path]
		if !ok || has(f.Tag, "until") || has(f.Tag, "own") {
			continue
		}
		switch {
		case !isZero(v) || v.Kind() == reflect.Bool || v.Kind() == reflect.Int32 || isDuration(v.Type()):
			out[name] = strings.Trim(text(v), `"`)
			if more := depends[path]; more != "" {
				out[name] += "; " + more
			}
		case depends[path] != "":
			out[name] = depends[path]
		}
	}
	return out
}

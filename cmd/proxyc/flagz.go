package main

import (
	"fmt"
	"reflect"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/compiler/config"
)

// flagValues returns all flags of the verb that runs by name, with what is in
// force: that of the configuration where a flag sets some of it, and else what
// the command line says, or the default.
func flagValues(k *kong.Context, cfg *config.Config) map[string]string {
	values, inForce := map[string]string{}, config.FlagValues(cfg)
	for _, flag := range k.Flags() {
		value, ok := inForce[flag.Name]
		if !ok {
			value = valueText(reflect.ValueOf(k.FlagValue(flag)))
		}
		values[flag.Name] = value
	}
	delete(values, "help")
	return values
}

// valueText writes the value of a flag; nothing where there is none.
func valueText(v reflect.Value) string {
	if v.IsValid() && v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if !v.IsValid() {
		return ""
	}
	return fmt.Sprint(v.Interface())
}

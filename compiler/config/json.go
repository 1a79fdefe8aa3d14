package config

import (
	"encoding/json"
	"regexp"
	"slices"
)

// escape matches an escape of JSON: a surrogate pair, or the begin of another one.
var escape = regexp.MustCompile(`\\(u[dD][89abAB][[:xdigit:]]{2}\\u[dD][c-fC-F][[:xdigit:]]{2}|.)`)

// asYAML replaces the two escapes of JSON that YAML does not support: "\/" and
// surrogate pairs. It returns any input but JSON unchanged. Line numbers do not
// change.
func asYAML(data []byte) []byte {
	if !json.Valid(data) {
		return data
	}
	return escape.ReplaceAllFunc(data, func(e []byte) []byte {
		var text string
		if len(e) == len(`\n`) && e[1] != '/' || json.Unmarshal(slices.Concat([]byte{'"'}, e, []byte{'"'}), &text) != nil {
			return e
		}
		return []byte(text)
	})
}

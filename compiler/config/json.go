package config

import (
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// asYAML replaces the two escapes of JSON that YAML does not support: "\/" and
// surrogate pairs. It returns any input but JSON unchanged. Line numbers do not
// change.
func asYAML(data []byte) []byte {
	if !json.Valid(data) {
		return data
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' { // only strings contain backslashes, and never at the end
			out = append(out, data[i])
			continue
		}
		if data[i+1] == '/' {
			continue
		}
		if r := surrogates(data[i:]); r != utf8.RuneError {
			out = utf8.AppendRune(out, r)
			i += len(`\ud83d\ude00`) - 1
			continue
		}
		out = append(out, data[i], data[i+1])
		i++
	}
	return out
}

// surrogates returns the character for a pair of escapes at the start of s, or
// RuneError if there is none.
func surrogates(s []byte) rune {
	if len(s) < 12 || s[1] != 'u' || s[6] != '\\' || s[7] != 'u' {
		return utf8.RuneError
	}
	high, err1 := strconv.ParseUint(string(s[2:6]), 16, 16)
	low, err2 := strconv.ParseUint(string(s[8:12]), 16, 16)
	if err1 != nil || err2 != nil {
		return utf8.RuneError
	}
	return utf16.DecodeRune(rune(high), rune(low))
}

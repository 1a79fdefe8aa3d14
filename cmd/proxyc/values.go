package main

import (
	"fmt"
	"reflect"
	"strconv"

	"github.com/alecthomas/kong"
)

// switches reads the values of flags that are on or off by kube-proxy's words,
// which are Go's: 1, t, T, true and so on, but not yes.
type switches struct{}

func (switches) IsBool() bool { return true }

// Decode takes the value after "=", or none, which is on.
func (switches) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	on, err := switchOf(ctx)
	target.SetBool(on)
	return err
}

// switchOf reads such a value. words stand for on, too.
func switchOf(ctx *kong.DecodeContext, words ...string) (bool, error) {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return true, nil
	}
	text := fmt.Sprint(ctx.Scan.Pop().Value)
	for _, word := range words {
		if text == word {
			return true, nil
		}
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("must be true or false, got %q", text)
	}
	return on, nil
}

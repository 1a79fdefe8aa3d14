package main

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

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

// durations reads flags that take a time. Those of proxyc's own are not negative; those of
// kube-proxy, which stand for a field of its configuration, may be where it lets the field be so.
type durations struct{}

// Decode takes what follows, also where it begins with a minus.
func (durations) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	text, _ := ctx.Scan.Pop().Value.(string)
	d, err := time.ParseDuration(text)
	switch {
	case ctx.Value.Tag.Has("config") || ctx.Value.Tag.Has("sets"):
		if err != nil {
			return fmt.Errorf("must be a time, as 30s or 1h30m, got %q", text)
		}
	case err != nil || d < 0:
		return fmt.Errorf("must be a time that is not negative, as 30s or 1h30m, got %q", text)
	}
	target.SetInt(int64(d))
	return nil
}

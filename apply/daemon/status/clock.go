package status

import (
	"reflect"
	"time"
)

// clockSet is the difference above which a clock has been set.
const clockSet = time.Second

// SetNow sets Now, and converts times to the node's current wall clock, so that ages are correct. It
// may have been set since, even by a year on a node whose clock stops without power.
func (st *Status) SetNow(now time.Time) {
	st.Now = now
	convert(reflect.ValueOf(st).Elem(), now)
}

// convert converts the exported times in a value. It replaces pointers and slices by copies, since other
// Statuses may share them.
func convert(v reflect.Value, now time.Time) {
	switch at, isTime := v.Interface().(time.Time); {
	case isTime && !at.IsZero():
		then := now.Add(at.Sub(now))                 // by the monotonic clock, if both have it
		if then.Sub(at.Round(0)).Abs() >= clockSet { // clocks drift: report a constant time otherwise
			v.Set(reflect.ValueOf(then))
		}
	case isTime:
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				convert(v.Field(i), now)
			}
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(v.Elem())
		v.Set(c)
		convert(c.Elem(), now)
	case v.Kind() == reflect.Slice && !v.IsNil():
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		v.Set(c)
		for i := range c.Len() {
			convert(c.Index(i), now)
		}
	}
}

package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

// byteSize is a number of bytes on the command line: 1000, 64Ki, 256Mi.
type byteSize int64

func (b *byteSize) UnmarshalText(text []byte) error {
	q, err := resource.ParseQuantity(string(text))
	if err != nil || q.Sign() < 0 {
		return fmt.Errorf("must be a number of bytes, as 256Mi, got %q", text)
	}
	*b = byteSize(q.Value())
	return nil
}

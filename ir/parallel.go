package ir

import (
	"runtime"
	"sync"
)

// Parallel calls do with 0 to n-1 on all processors.
func Parallel(n int, do func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < n; i += workers {
				do(i)
			}
		})
	}
	all.Wait()
}

// SetIn sets a value in a map, which it makes if necessary.
func SetIn[M ~map[K]V, K comparable, V any](m *M, key K, value V) {
	if *m == nil {
		*m = M{}
	}
	(*m)[key] = value
}

// Int returns 1 for true, and otherwise 0.
func Int(b bool) int {
	if b {
		return 1
	}
	return 0
}

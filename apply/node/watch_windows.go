package node

import (
	"context"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Watch calls changed each time an address of the machine comes or goes, until ctx ends.
func Watch(ctx context.Context, changed func()) error {
	told := make(chan struct{}, 1)
	// Windows calls it in a thread of its own, which is not to wait.
	tell := windows.NewCallback(func(_, _ uintptr, _ uint32) uintptr {
		select {
		case told <- struct{}{}:
		default:
		}
		return 0
	})
	var handle windows.Handle
	if err := windows.NotifyUnicastIpAddressChange(windows.AF_UNSPEC, tell, unsafe.Pointer(nil), false, &handle); err != nil {
		return fmt.Errorf("listening to interface addresses: %w", err)
	}
	defer windows.CancelMibChangeNotify2(handle)
	changed() // what changes from here on is seen
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-told:
			changed()
		}
	}
}

package node

import (
	"context"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Watch calls changed once, and after each change of an address, until ctx ends.
func Watch(ctx context.Context, changed func(missed error)) error {
	notified := make(chan struct{}, 1)
	// Windows calls the callback in its own thread, which must not block.
	notify := windows.NewCallback(func(_, _ uintptr, _ uint32) uintptr {
		select {
		case notified <- struct{}{}:
		default:
		}
		return 0
	})
	var handle windows.Handle
	if err := windows.NotifyUnicastIpAddressChange(windows.AF_UNSPEC, notify, unsafe.Pointer(nil), false, &handle); err != nil {
		return fmt.Errorf("listening to interface addresses: %w", err)
	}
	defer windows.CancelMibChangeNotify2(handle)
	changed(nil) // after registering, so that no change is missed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-notified:
			changed(nil)
		}
	}
}

package apply

// Wake puts a token into a channel for one, unless one is already pending.
func Wake(pending chan<- struct{}) {
	select {
	case pending <- struct{}{}:
	default:
	}
}

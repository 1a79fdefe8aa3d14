package nftables

// Bytes is how much a commit of the Plan sends to the kernel, without the
// entries of affinity maps that it finds there: the cost of a change, which
// TestCounts of cmd/proxyc holds. It needs the messages, which nobody outside
// this package sees.
func (p *Plan) Bytes() (n int) {
	for _, m := range newBatch(p, nil).messages {
		n += len(m.Raw)
	}
	return n
}

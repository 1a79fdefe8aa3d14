package nftables

// Bytes returns the size of the batch for a Plan, without the entries of affinity maps that the
// commit finds. It measures the cost of a change for TestCounts in cmd/proxyc, which cannot access
// the messages.
func (p *Plan) Bytes() (n int) {
	for _, m := range newBatch(p, nil).messages {
		n += len(m.Raw)
	}
	return n
}

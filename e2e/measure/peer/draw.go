package peer

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// Sizes of a plot, in pixels.
const (
	plotWidth  = 850
	labelWidth = 360
	barsWidth  = 330
	rowHeight  = 40
	barHeight  = 13
	headHeight = 58
)

// style is readable on light and on dark backgrounds.
const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #24292f }
.small { font-size: 11px; fill: #57606a }
.title { font-size: 14px; font-weight: 600 }
.proxyc { fill: #0969da } .kube-proxy { fill: #bf8700 }
.ground { fill: #ffffff } .line { stroke: #d0d7de }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 }
.proxyc { fill: #4493f8 } .kube-proxy { fill: #d29922 }
.ground { fill: #0d1117 } .line { stroke: #3d444d }
}
</style>
`

// draw writes a plot for each pair. Each plotted metric has its own logarithmic scale, which both
// programs share.
func draw(dir string, all []pair) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range all {
		if err := os.WriteFile(filepath.Join(dir, p.fileName()), []byte(p.plot()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fileName describes the measurement.
func (p pair) fileName() string {
	o := p.Options
	return fmt.Sprintf("%s-%vx%v-%v-%v-%v.svg", p.mode, o["services"], o["endpoints"], o["mix"], o["minSync"], o["order"])
}

// plot returns a pair as SVG.
func (p pair) plot() string {
	var rows strings.Builder
	y := headHeight
	for _, m := range metrics {
		if !m.plot {
			continue
		}
		own, ok1 := m.value(p.own)
		peer, ok2 := m.value(p.peer)
		if !ok1 && !ok2 {
			continue
		}
		rows.WriteString(m.row(y, own, peer))
		y += rowHeight
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">`+"\n", plotWidth, y+8)
	fmt.Fprintf(&b, "<title>%s</title>\n%s", escape(p.title()), style)
	fmt.Fprintf(&b, `<rect class="ground" width="%d" height="%d"/>`+"\n", plotWidth, y+8)
	fmt.Fprintf(&b, `<text class="title" x="12" y="22">%s</text>`+"\n", escape(p.title()))
	fmt.Fprintf(&b, `<rect class="proxyc" x="12" y="34" width="10" height="10"/><text class="small" x="27" y="43">proxyc</text>`)
	fmt.Fprintf(&b, `<rect class="kube-proxy" x="80" y="34" width="10" height="10"/><text class="small" x="95" y="43">kube-proxy %s; each line has a logarithmic scale of its own, ten times a tick</text>`+"\n", escape(p.Versions[peerName]))
	return b.String() + rows.String() + "</svg>\n"
}

// row draws a metric: both bars, their values, and the ratio.
func (m metric) row(y int, own, peer float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<line class="line" x1="12" x2="%d" y1="%d" y2="%[2]d"/>`+"\n", plotWidth-12, y)
	fmt.Fprintf(&b, `<text x="12" y="%d">%s</text>`+"\n", y+18, escape(m.what))
	better := "lower is better"
	if m.better == higher {
		better = "higher is better"
	}
	fmt.Fprintf(&b, `<text class="small" x="12" y="%d">%s</text>`+"\n", y+32, better)
	floor := scaleFloor(own, peer)
	for tick := floor; tick <= max(own, peer); tick *= 10 {
		x := labelWidth + barLength(tick, floor, max(own, peer))
		fmt.Fprintf(&b, `<line class="line" x1="%d" x2="%[1]d" y1="%d" y2="%d"/>`+"\n", x, y+4, y+36)
	}
	for i, bar := range []struct {
		class string
		value float64
	}{{proxycName, own}, {peerName, peer}} {
		top := y + 6 + i*(barHeight+3)
		text := "not measured"
		length := 0
		if bar.value > 0 {
			text, length = m.text(bar.value, true)+" "+m.unit, barLength(bar.value, floor, max(own, peer))
		}
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="%d" height="%d"/>`, bar.class, labelWidth, top, length, barHeight)
		fmt.Fprintf(&b, `<text class="small" x="%d" y="%d">%s</text>`+"\n", labelWidth+length+5, top+11, escape(text))
	}
	if own > 0 && peer > 0 {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s x</text>`+"\n", plotWidth-12, y+25, digits(m.ratio(peer, own)))
	}
	return b.String()
}

// scaleFloor returns the start of a scale: a power of ten below all values.
func scaleFloor(values ...float64) float64 {
	least := math.Inf(1)
	for _, v := range values {
		if v > 0 {
			least = min(least, v)
		}
	}
	if math.IsInf(least, 1) {
		return 1
	}
	return math.Pow(10, math.Ceil(math.Log10(least))-1)
}

// barLength returns the position of a value on a scale from floor to most.
func barLength(v, floor, most float64) int {
	if most <= floor {
		return 0
	}
	return int(barsWidth * math.Log10(v/floor) / math.Log10(most/floor))
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}

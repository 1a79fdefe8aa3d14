package growth

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
)

// kind is a kind of cluster. All but the first contain what tenants may write that affects each
// other's Services.
type kind struct {
	name    string
	sizes   string // by default
	cluster cluster.Cluster
}

var kinds = []kind{
	{"mixed", "1000x10,5000x10,10000x10,20000x10,50000x10,20000x1,5000x50", cluster.Cluster{}},
	// All Services have the same 1,000 ports and 9 external IPs. The last one is the oldest, so
	// that an added Service wins.
	{"contested", "10x1,20x1,40x1", cluster.Cluster{Plain: true, Each: func(s *corev1.Service, i int) {
		s.CreationTimestamp = metav1.Time{Time: time.Unix(1e9-int64(i), 0)}
		for j := range 9 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("198.51.100.%d", 1+j))
		}
		for j := len(s.Spec.Ports); j < 1000; j++ {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("q%d", j), Protocol: corev1.ProtocolTCP,
				Port: int32(1000 + j), TargetPort: intstr.FromInt(8080 + j)})
		}
	}}},
	{"shared", "500x50,1000x50,2000x50", cluster.Cluster{Plain: true, SameEndpoints: true}},
	// Each Service has another 200 source ranges, some within others.
	{"ranges", "200x1,400x1,800x1", cluster.Cluster{Plain: true, Each: func(s *corev1.Service, i int) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("198.18.%d.%d", i/250, 1+i%250)}}
		for j := range 200 {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("%d.%d.%d.0/%d", 1+(7*j+i)%200, (13*i+j)%256, 11*i%256, 9+(i+j)%16))
		}
	}}},
}

func kindNames() string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return strings.Join(names, ", ")
}

// printPowers prints the power of the number of Services with which costs grow. 1 is linear; it
// is less if a part is the same for all sizes.
func (r *report) printPowers(w io.Writer) {
	if len(r.Rows) < 2 {
		return
	}
	fmt.Fprint(w, "\n| Services\t| CPU of the start\t| at most\t| live heap\t| CPU of one endpoint\t| Service added\t| removed\t|\n|---\t|---\t|---\t|---\t|---\t|---\t|---\t|\n")
	costs := func(r *row) [6]float64 {
		return [...]float64{r.API.CPUSeconds, r.API.Peak, r.API.Live, r.Endpoint.CPUSeconds, r.Added.CPUSeconds, r.Removed.CPUSeconds}
	}
	for i := 1; i < len(r.Rows); i++ {
		from, to := r.Rows[i-1], r.Rows[i]
		if from.Endpoints != to.Endpoints || from.Services >= to.Services {
			continue
		}
		fmt.Fprintf(w, "| %d to %d\t", from.Services, to.Services)
		more, before := math.Log(float64(to.Services)/float64(from.Services)), costs(from)
		for j, cost := range costs(to) {
			fmt.Fprintf(w, "| %.1f\t", math.Log(cost/before[j])/more)
		}
		fmt.Fprintln(w, "|")
	}
}

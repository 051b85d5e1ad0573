package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Objects holds the rendered objects of the chart, in Kubernetes' own types.
type objects struct {
	count   int
	nodes   *apps.StatefulSet
	service *core.Service
	budget  *policy.PodDisruptionBudget
	config  *core.ConfigMap
	account *core.ServiceAccount
}

// Read parses an object. It refuses fields that Kubernetes does not know, fields given twice, and values of another type.
func read(files map[string]string) (*objects, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme, policy.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	found := &objects{}
	for name, text := range files {
		documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if strings.TrimSpace(string(document)) == "" {
				continue
			}
			object, _, err := strict.Decode(document, nil, nil)
			if err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, document)
			}
			if err := found.take(object); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return found, nil
}

func (o *objects) take(object runtime.Object) error {
	o.count++
	switch object := object.(type) {
	case *apps.StatefulSet:
		o.nodes = object
	case *core.Service:
		o.service = object
	case *policy.PodDisruptionBudget:
		o.budget = object
	case *core.ConfigMap:
		o.config = object
	case *core.ServiceAccount:
		o.account = object
	default:
		return fmt.Errorf("a %T is not expected", object)
	}
	return nil
}

// Agree checks that names in one object match those in the others, and that a pod is drained and confined.
func (o *objects) agree() error {
	if o.nodes == nil || o.service == nil || o.budget == nil || o.config == nil || o.account == nil {
		return errors.New("an object is missing")
	}
	pod, pods := o.nodes.Spec.Template.Spec, labels.Set(o.nodes.Spec.Template.Labels)
	if len(pod.Containers) != 1 {
		return errors.New("not one container")
	}
	node := pod.Containers[0]
	for what, holds := range map[string]bool{
		"the StatefulSet selects its pods":       selects(o.nodes.Spec.Selector, pods),
		"the budget selects the pods":            selects(o.budget.Spec.Selector, pods),
		"the service selects the pods":           labels.SelectorFromSet(o.service.Spec.Selector).Matches(pods),
		"the spread selects the pods":            selects(pod.TopologySpreadConstraints[0].LabelSelector, pods),
		"the service is the StatefulSet's":       o.nodes.Spec.ServiceName == o.service.Name,
		"the account is the pods'":               pod.ServiceAccountName == o.account.Name,
		"no token is mounted":                    no(pod.AutomountServiceAccountToken) && no(o.account.AutomountServiceAccountToken),
		"a pod may drain":                        drains(pod, node),
		"every mount has its volume":             mounts(pod, node),
		"the port of probes and service is open": ports(node, o.service),
		"a pod is confined":                      confined(pod, node),
		"secrets are in files":                   inFiles(node),
	} {
		if !holds {
			return fmt.Errorf("this does not hold: %s", what)
		}
	}
	return nil
}

func selects(selector *meta.LabelSelector, pods labels.Set) bool {
	made, err := meta.LabelSelectorAsSelector(selector)
	return err == nil && !made.Empty() && made.Matches(pods)
}

func no(said *bool) bool { return said != nil && !*said }

func yes(said *bool) bool { return said != nil && *said }

func drains(pod core.PodSpec, node core.Container) bool {
	var seconds int64
	_, err := fmt.Sscanf(variable(node, "PLANCK_NODE_DRAIN_TIMEOUT"), "%ds", &seconds)
	return err == nil && pod.TerminationGracePeriodSeconds != nil && *pod.TerminationGracePeriodSeconds >= seconds+30
}

func mounts(pod core.PodSpec, node core.Container) bool {
	var volumes, mounted []string
	for _, volume := range pod.Volumes {
		volumes = append(volumes, volume.Name)
	}
	for _, mount := range node.VolumeMounts {
		mounted = append(mounted, mount.Name)
	}
	slices.Sort(volumes)
	slices.Sort(mounted)
	return slices.Equal(volumes, mounted) && len(slices.Compact(mounted)) == len(node.VolumeMounts)
}

func ports(node core.Container, service *core.Service) bool {
	open := node.Ports[0]
	probes := []*core.Probe{node.StartupProbe, node.ReadinessProbe, node.LivenessProbe}
	for _, probe := range probes {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Port.String() != open.Name {
			return false
		}
	}
	listens := variable(node, "PLANCK_TELEMETRY_LISTEN") == fmt.Sprintf("0.0.0.0:%d", open.ContainerPort)
	return listens && service.Spec.Ports[0].TargetPort.String() == open.Name && service.Spec.Ports[0].Port == open.ContainerPort
}

func confined(pod core.PodSpec, node core.Container) bool {
	all, own := pod.SecurityContext, node.SecurityContext
	drops := own.Capabilities != nil && slices.Equal(own.Capabilities.Drop, []core.Capability{"ALL"}) && len(own.Capabilities.Add) == 0
	filtered := all.SeccompProfile != nil && all.SeccompProfile.Type != core.SeccompProfileTypeUnconfined
	return yes(all.RunAsNonRoot) && filtered && drops && yes(own.ReadOnlyRootFilesystem) && no(own.AllowPrivilegeEscalation)
}

// inFiles checks that every variable that holds a secret names a mounted file.
func inFiles(node core.Container) bool {
	for _, each := range node.Env {
		if each.Name != "NATS_URL" && each.Name != "DATABASE_URL" && !strings.HasSuffix(each.Name, "_KEY") {
			continue
		}
		path := strings.TrimPrefix(each.Value, "file:")
		if !slices.ContainsFunc(node.VolumeMounts, func(mount core.VolumeMount) bool {
			return mount.ReadOnly && strings.HasPrefix(path, mount.MountPath+"/")
		}) {
			return false
		}
	}
	return variable(node, "NATS_URL") != "" && variable(node, "DATABASE_URL") != ""
}

func variable(node core.Container, name string) string {
	for _, each := range node.Env {
		if each.Name == name {
			return each.Value
		}
	}
	return ""
}

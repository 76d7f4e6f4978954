// Command policycheck reports whether Cilium accepts policies, and whether flows pass
// while they are in force. It runs Cilium's own code without a cluster: the schema of
// its CRDs, its parser and sanitizer, and its policy repository.
//
// It reads a JSON list of cases and writes a list of answers in the same order.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	apiextensionsinternal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	cmtypes "github.com/cilium/cilium/pkg/clustermesh/types"
	"github.com/cilium/cilium/pkg/endpoint/regeneration"
	"github.com/cilium/cilium/pkg/identity"
	ipcachetypes "github.com/cilium/cilium/pkg/ipcache/types"
	"github.com/cilium/cilium/pkg/k8s/apis/cilium.io/client"
	v2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2/validator"
	k8sutils "github.com/cilium/cilium/pkg/k8s/utils"
	"github.com/cilium/cilium/pkg/labels"
	"github.com/cilium/cilium/pkg/labelsfilter"
	"github.com/cilium/cilium/pkg/option"
	"github.com/cilium/cilium/pkg/policy"
	"github.com/cilium/cilium/pkg/policy/api"
	policyutils "github.com/cilium/cilium/pkg/policy/utils"
	"github.com/cilium/cilium/pkg/u8proto"
)

// question is a cluster with its policies, and flows to check.
type question struct {
	// Cluster is the Cilium name of the cluster.
	Cluster string `json:"cluster"`
	// DefaultLocalCluster is the agent's policy-default-local-cluster.
	DefaultLocalCluster bool              `json:"defaultLocalCluster"`
	Policies            []json.RawMessage `json:"policies"`
	Flows               []flow            `json:"flows"`
}

// flow is a connection to a pod of that cluster.
type flow struct {
	From     endpoint `json:"from"`
	To       endpoint `json:"to"`
	Protocol string   `json:"protocol"`
	Port     uint16   `json:"port"`
}

// endpoint is a pod, or the outside world if Cluster is empty.
type endpoint struct {
	Cluster   string            `json:"cluster"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

// answer contains flows only if all policies are accepted.
type answer struct {
	// Errors lists the errors of each policy; empty if it is accepted.
	Errors [][]string `json:"errors"`
	Flows  []verdict  `json:"flows"`
}

// verdict reports whether the source may send and the destination may receive.
type verdict struct {
	Egress  bool `json:"egress"`
	Ingress bool `json:"ingress"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var questions []question
	decoder := json.NewDecoder(in)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&questions); err != nil {
		return fmt.Errorf("reading cases: %w", err)
	}
	check, err := newCheck()
	if err != nil {
		return err
	}
	answers := make([]answer, 0, len(questions))
	for at, question := range questions {
		answer, err := check.answer(question)
		if err != nil {
			return fmt.Errorf("case %d: %w", at, err)
		}
		answers = append(answers, answer)
	}
	return json.NewEncoder(out).Encode(answers)
}

// check holds the state shared by all cases.
type check struct {
	// logger writes Cilium's warnings to said.
	logger  *slog.Logger
	said    *bytes.Buffer
	schemas map[string]validation.SchemaCreateValidator
	fields  *validator.NPValidator
}

func newCheck() (*check, error) {
	policy.SetPolicyEnabled(option.DefaultEnforcement)
	said := &bytes.Buffer{}
	logger := slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := labelsfilter.ParseLabelPrefixCfg(logger, nil, nil, ""); err != nil {
		return nil, err
	}
	fields, err := validator.NewNPValidator(logger)
	if err != nil {
		return nil, err
	}
	schemas := map[string]validation.SchemaCreateValidator{}
	for kind, name := range map[string]string{
		v2.CNPKindDefinition:  client.CNPCRDName,
		v2.CCNPKindDefinition: client.CCNPCRDName,
	} {
		crd := client.GetPregeneratedCRD(logger, name)
		if schemas[kind], err = schemaOf(&crd); err != nil {
			return nil, err
		}
	}
	return &check{logger, said, schemas, fields}, nil
}

func schemaOf(crd *apiextensionsv1.CustomResourceDefinition) (validation.SchemaCreateValidator, error) {
	internal := &apiextensionsinternal.CustomResourceValidation{}
	schema := crd.Spec.Versions[0].Schema
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(schema, internal, nil); err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(internal.OpenAPIV3Schema)
	return validator, err
}

func (c *check) answer(question question) (answer, error) {
	repository := policy.NewPolicyRepository(c.logger, nil, nil, nil, nil, nil)
	accepted := true
	answer := answer{Errors: [][]string{}, Flows: []verdict{}}
	local := cmtypes.LocalClusterNameForPolicies(
		cmtypes.PolicyConfig{PolicyDefaultLocalCluster: question.DefaultLocalCluster}, question.Cluster)
	for _, object := range question.Policies {
		wrong := []string{}
		for _, err := range c.add(repository, local, object) {
			wrong = append(wrong, err.Error())
		}
		accepted = accepted && len(wrong) == 0
		answer.Errors = append(answer.Errors, wrong)
	}
	if !accepted {
		return answer, nil
	}
	known := identities{repository: repository, byLabels: map[string]*identity.Identity{}}
	// Policies are computed only for identities that are already known.
	for _, flow := range question.Flows {
		known.of(flow.From)
		known.of(flow.To)
	}
	force := force{c.logger, repository, map[identity.NumericIdentity]*policy.EndpointPolicy{}}
	for _, flow := range question.Flows {
		verdict, err := force.decide(question.Cluster, flow, known.of(flow.From), known.of(flow.To))
		if err != nil {
			return answer, err
		}
		answer.Flows = append(answer.Flows, verdict)
	}
	return answer, nil
}

// add adds a policy to the repository like the agent does, or returns all errors.
// Warnings of Cilium count as errors.
func (c *check) add(repository *policy.Repository, local string, raw json.RawMessage) []error {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return []error{err}
	}
	kind := object.GetKind()
	schema, ok := c.schemas[kind]
	if !ok || object.GetAPIVersion() != v2.SchemeGroupVersion.String() {
		return []error{fmt.Errorf("%s %s is not a policy", object.GetAPIVersion(), kind)}
	}
	var errs []error
	for _, err := range validation.ValidateCustomResource(nil, object.Object, schema) {
		errs = append(errs, err)
	}
	var rules api.Rules
	var err error
	resource := ipcachetypes.NewResourceID(ipcachetypes.ResourceKindCNP, object.GetNamespace(), object.GetName())
	c.said.Reset()
	switch kind {
	case v2.CNPKindDefinition:
		if object.GetNamespace() == "" {
			errs = append(errs, errors.New("a namespaced policy needs a namespace"))
		}
		errs = append(errs, c.fields.ValidateCNP(object))
		of := &v2.CiliumNetworkPolicy{}
		if err = json.Unmarshal(raw, of); err == nil {
			rules, err = of.Parse(c.logger, local)
		}
	default:
		if object.GetNamespace() != "" {
			errs = append(errs, errors.New("a cluster-wide policy must not have a namespace"))
		}
		resource = ipcachetypes.NewResourceID(ipcachetypes.ResourceKindCCNP, "", object.GetName())
		errs = append(errs, c.fields.ValidateCCNP(object))
		of := &v2.CiliumClusterwideNetworkPolicy{}
		if err = json.Unmarshal(raw, of); err == nil {
			rules, err = of.Parse(c.logger, local)
		}
	}
	errs = append(errs, err)
	if c.said.Len() > 0 {
		errs = append(errs, errors.New(c.said.String()))
	}
	if errs = present(errs); len(errs) == 0 {
		repository.ReplaceByResource(policyutils.RulesToPolicyEntries(rules), resource)
	}
	return errs
}

func present(all []error) []error {
	var some []error
	for _, err := range all {
		if err != nil {
			some = append(some, err)
		}
	}
	return some
}

// force caches the computed policy of each identity.
type force struct {
	logger     *slog.Logger
	repository *policy.Repository
	computed   map[identity.NumericIdentity]*policy.EndpointPolicy
}

func (f force) decide(local string, flow flow, from, to *identity.Identity) (verdict, error) {
	if flow.To.Cluster != local {
		return verdict{}, fmt.Errorf("destination is in cluster %q, policies are in cluster %q", flow.To.Cluster, local)
	}
	protocol, err := u8proto.ParseProtocol(flow.Protocol)
	if err != nil {
		return verdict{}, err
	}
	ingress, err := f.passes(to, policy.IngressKey().WithIdentity(from.ID).WithPortProto(protocol, flow.Port))
	// Egress of a pod in another cluster is decided by that cluster's policies.
	if err != nil || flow.From.Cluster != local {
		return verdict{Egress: true, Ingress: ingress}, err
	}
	egress, err := f.passes(from, policy.EgressKey().WithIdentity(to.ID).WithPortProto(protocol, flow.Port))
	return verdict{Egress: egress, Ingress: ingress}, err
}

// passes looks up a packet in the policy map that the datapath would use.
func (f force) passes(of *identity.Identity, packet policy.Key) (bool, error) {
	if f.computed[of.ID] == nil {
		selected, _, err := f.repository.ComputeSelectorPolicy(of)
		if err != nil {
			return false, err
		}
		entries := selected.DistillPolicy(f.logger, pod{uint64(of.ID)}, nil)
		entries.Ready()
		entries.Detach(f.logger)
		selected.Supersede()
		f.computed[of.ID] = entries
	}
	entry, _, _ := f.computed[of.ID].Lookup(packet)
	return !entry.IsDeny(), nil
}

// pod is the endpoint that policy maps are computed for. It has no named ports.
type pod struct{ id uint64 }

func (p pod) GetID() uint64                                    { return p.id }
func (pod) GetIngressNamedPort(string, u8proto.U8proto) uint16 { return 0 }
func (pod) PolicyDebug(string, ...any)                         {}
func (pod) IsHost() bool                                       { return false }
func (pod) PreviousMapStateSizes() policy.MapStateSizes        { return policy.MapStateSizes{} }
func (pod) RegenerateIfAlive(*regeneration.ExternalRegenerationMetadata) <-chan bool {
	done := make(chan bool)
	close(done)
	return done
}

// identities assigns one identity to all endpoints with equal labels, like Cilium does.
type identities struct {
	repository *policy.Repository
	byLabels   map[string]*identity.Identity
}

func (i identities) of(endpoint endpoint) *identity.Identity {
	id, all := identity.ReservedIdentityWorld, labels.LabelWorld
	if endpoint.Cluster != "" {
		id = identity.MinimalNumericIdentity + identity.NumericIdentity(len(i.byLabels))
		all = labelsOf(endpoint)
	}
	key := string(all.SortedList())
	if found, ok := i.byLabels[key]; ok {
		return found
	}
	made := identity.NewIdentity(id, all)
	i.byLabels[key] = made
	added := identity.IdentityMap{id: made.LabelArray}
	i.repository.GetSelectorCache().UpdateIdentities(added, nil, &sync.WaitGroup{})
	i.repository.UpdateIdentities(added, nil)
	return made
}

// labelsOf returns the identity labels of a pod: Cilium's labels are added, labels that
// are not relevant for identities are removed.
func labelsOf(pod endpoint) labels.Labels {
	namespace := &metav1.ObjectMeta{Name: pod.Namespace, Labels: map[string]string{"kubernetes.io/metadata.name": pod.Namespace}}
	all := k8sutils.SanitizePodLabels(pod.Labels, namespace, "default", pod.Cluster)
	ofIdentity, _ := labelsfilter.Filter(labels.Map2Labels(all, labels.LabelSourceK8s))
	return ofIdentity
}

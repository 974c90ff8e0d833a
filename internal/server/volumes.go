package server

import (
	"net/http"
	"net/url"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// volumeRoutes returns the routes of volumes. Their files are read and written through a session that has the volume.
func volumeRoutes() []route {
	const path = "/v1/volumes"
	return []route{
		on("GET", path, "volumes", "List the volumes of the tenant", scopeRead, listVolumes).with(qLimit, qAfter),
		on("POST", path, "volumes", "Create a volume, whose files outlive sessions", scopeExecute, createVolume).
			repeating().succeeding(http.StatusCreated).
			failing(http.StatusConflict, http.StatusForbidden, http.StatusInsufficientStorage, http.StatusNotImplemented).
			lasting(),
		on("GET", path+"/{volume}", "volumes", "Show a volume, and the sessions that use it", scopeRead, showVolume),
		on("DELETE", path+"/{volume}", "volumes", "Delete a volume with its files; refused while a session uses it",
			scopeExecute, deleteVolume).failing(http.StatusConflict).lasting(),
	}
}

func listVolumes(c *call, _ none) (out v1.VolumePage, err error) {
	if err := c.refuseToken("list volumes"); err != nil {
		return out, err
	}
	all, err := c.s.manager.Volumes(c.ctx(), c.who.tenant)
	if err != nil {
		return out, err
	}
	out.Volumes, out.Next = paged(c, all, func(v v1.VolumeInfo) string { return v.Name })
	return out, nil
}

func createVolume(c *call, in v1.NewVolume) (v1.VolumeInfo, error) {
	if err := c.refuseToken("create volume"); err != nil {
		return v1.VolumeInfo{}, err
	}
	v, err := c.s.manager.CreateVolume(c.making(), c.who.tenant, in)
	if err != nil {
		return v, err
	}
	c.status = http.StatusCreated
	c.w.Header().Set("Location", "/v1/volumes/"+url.PathEscape(v.Name))
	return v, nil
}

func showVolume(c *call, _ none) (v1.VolumeInfo, error) {
	if err := c.refuseToken("show volume"); err != nil {
		return v1.VolumeInfo{}, err
	}
	return c.s.manager.Volume(c.ctx(), c.who.tenant, c.r.PathValue("volume"))
}

func deleteVolume(c *call, _ none) (none, error) {
	if err := c.refuseToken("delete volume"); err != nil {
		return none{}, err
	}
	return none{}, c.s.manager.DeleteVolume(c.ctx(), c.who.tenant, c.r.PathValue("volume"))
}

// refuseToken refuses holders of a session token: the volumes of the tenant are not those of the session.
func (c *call) refuseToken(op string) error {
	if c.who.session == "" {
		return nil
	}
	return &v1.Error{
		Code:    v1.CodeForbidden,
		Op:      op,
		Message: "a session token is valid for its session only",
		Remedy:  "use a key",
	}
}

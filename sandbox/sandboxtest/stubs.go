package sandboxtest
var fileFeatures, cells, attachments, limits, snapshots, life []feature

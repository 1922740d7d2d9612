// The page in one file: its own data, shown when it has been unpacked.

openData(data, await unpacked(data.block));
beginMaps();
showMaps();
document.body.dataset.ready = "";

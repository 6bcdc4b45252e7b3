-- The shapes of ClickBench's 43 queries, in our words and for our table (`commensal-sql-bench generate`). Groups are kept from
-- one row in a thousand on, and pages of results begin early, so that a small table has rows for each.

-- 1: rows
SELECT COUNT(*) FROM hits;

-- 2: rows of advertisements
SELECT COUNT(*) FROM hits WHERE AdvEngineID <> 0;

-- 3: three aggregates over everything
SELECT SUM(AdvEngineID), COUNT(*), AVG(ResolutionWidth) FROM hits;

-- 4: mean of a wide column
SELECT AVG(UserID) FROM hits;

-- 5: distinct users
SELECT COUNT(DISTINCT UserID) FROM hits;

-- 6: distinct search phrases
SELECT COUNT(DISTINCT SearchPhrase) FROM hits;

-- 7: first and last day
SELECT MIN(EventDate), MAX(EventDate) FROM hits;

-- 8: rows by advertising engine
SELECT AdvEngineID, COUNT(*) AS c FROM hits WHERE AdvEngineID <> 0 GROUP BY AdvEngineID ORDER BY c DESC;

-- 9: regions with most users
SELECT RegionID, COUNT(DISTINCT UserID) AS u FROM hits GROUP BY RegionID ORDER BY u DESC LIMIT 10;

-- 10: regions with most rows, several aggregates
SELECT RegionID, SUM(AdvEngineID), COUNT(*) AS c, AVG(ResolutionWidth), COUNT(DISTINCT UserID) FROM hits GROUP BY
RegionID ORDER BY c DESC LIMIT 10;

-- 11: phones with most users
SELECT MobilePhoneModel, COUNT(DISTINCT UserID) AS u FROM hits WHERE MobilePhoneModel <> '' GROUP BY MobilePhoneModel
ORDER BY u DESC LIMIT 10;

-- 12: phones by maker and model
SELECT MobilePhone, MobilePhoneModel, COUNT(DISTINCT UserID) AS u FROM hits WHERE MobilePhoneModel <> '' GROUP BY
MobilePhone, MobilePhoneModel ORDER BY u DESC LIMIT 10;

-- 13: most frequent phrases
SELECT SearchPhrase, COUNT(*) AS c FROM hits WHERE SearchPhrase <> '' GROUP BY SearchPhrase ORDER BY c DESC LIMIT 10;

-- 14: phrases of most users
SELECT SearchPhrase, COUNT(DISTINCT UserID) AS u FROM hits WHERE SearchPhrase <> '' GROUP BY SearchPhrase ORDER BY u
DESC LIMIT 10;

-- 15: phrases by search engine
SELECT SearchEngineID, SearchPhrase, COUNT(*) AS c FROM hits WHERE SearchPhrase <> '' GROUP BY SearchEngineID,
SearchPhrase ORDER BY c DESC LIMIT 10;

-- 16: busiest users
SELECT UserID, COUNT(*) AS c FROM hits GROUP BY UserID ORDER BY c DESC LIMIT 10;

-- 17: busiest pairs of user and phrase
SELECT UserID, SearchPhrase, COUNT(*) AS c FROM hits GROUP BY UserID, SearchPhrase ORDER BY c DESC LIMIT 10;

-- 18: any pairs of user and phrase
SELECT UserID, SearchPhrase, COUNT(*) FROM hits GROUP BY UserID, SearchPhrase LIMIT 10;

-- 19: users by minute and phrase
SELECT UserID, EXTRACT(MINUTE FROM EventTime) AS m, SearchPhrase, COUNT(*) AS c FROM hits GROUP BY UserID, m,
SearchPhrase ORDER BY c DESC LIMIT 10;

-- 20: one user
SELECT UserID FROM hits WHERE UserID = 4350909328996404493;

-- 21: pages with a word
SELECT COUNT(*) FROM hits WHERE URL LIKE '%google%';

-- 22: phrases that led to pages with a word
SELECT SearchPhrase, MIN(URL), COUNT(*) AS c FROM hits WHERE URL LIKE '%google%' AND SearchPhrase <> '' GROUP BY
SearchPhrase ORDER BY c DESC LIMIT 10;

-- 23: phrases that led to titles with a word
SELECT SearchPhrase, MIN(URL), MIN(Title), COUNT(*) AS c, COUNT(DISTINCT UserID) FROM hits WHERE Title LIKE '%Google%'
AND URL NOT LIKE '%.google.%' AND SearchPhrase <> '' GROUP BY SearchPhrase ORDER BY c DESC LIMIT 10;

-- 24: whole rows in the order of time
SELECT * FROM hits WHERE URL LIKE '%google%' ORDER BY EventTime LIMIT 10;

-- 25: first phrases in time
SELECT SearchPhrase FROM hits WHERE SearchPhrase <> '' ORDER BY EventTime LIMIT 10;

-- 26: first phrases in the alphabet
SELECT SearchPhrase FROM hits WHERE SearchPhrase <> '' ORDER BY SearchPhrase LIMIT 10;

-- 27: first phrases in time, then in the alphabet
SELECT SearchPhrase FROM hits WHERE SearchPhrase <> '' ORDER BY EventTime, SearchPhrase LIMIT 10;

-- 28: length of pages by counter
SELECT CounterID, AVG(LENGTH(URL)) AS l, COUNT(*) AS c FROM hits WHERE URL <> '' GROUP BY CounterID HAVING COUNT(*) >
(SELECT COUNT(*) / 1000 FROM hits) ORDER BY l DESC LIMIT 25;

-- 29: length of referers by domain: the query of the document
SELECT REGEXP_REPLACE(Referer, '^https?://(?:www\\.)?([^/]+)/.*$', '\\1') AS k, AVG(LENGTH(Referer)) AS l, COUNT(*) AS
c, MIN(Referer) FROM hits WHERE Referer <> '' GROUP BY k HAVING COUNT(*) > (SELECT COUNT(*) / 1000 FROM hits) ORDER BY
l DESC LIMIT 25;

-- 30: ninety sums
SELECT SUM(ResolutionWidth), SUM(ResolutionWidth + 1), SUM(ResolutionWidth + 2), SUM(ResolutionWidth + 3),
SUM(ResolutionWidth + 4), SUM(ResolutionWidth + 5), SUM(ResolutionWidth + 6), SUM(ResolutionWidth + 7),
SUM(ResolutionWidth + 8), SUM(ResolutionWidth + 9), SUM(ResolutionWidth + 10), SUM(ResolutionWidth + 11),
SUM(ResolutionWidth + 12), SUM(ResolutionWidth + 13), SUM(ResolutionWidth + 14), SUM(ResolutionWidth + 15),
SUM(ResolutionWidth + 16), SUM(ResolutionWidth + 17), SUM(ResolutionWidth + 18), SUM(ResolutionWidth + 19),
SUM(ResolutionWidth + 20), SUM(ResolutionWidth + 21), SUM(ResolutionWidth + 22), SUM(ResolutionWidth + 23),
SUM(ResolutionWidth + 24), SUM(ResolutionWidth + 25), SUM(ResolutionWidth + 26), SUM(ResolutionWidth + 27),
SUM(ResolutionWidth + 28), SUM(ResolutionWidth + 29), SUM(ResolutionWidth + 30), SUM(ResolutionWidth + 31),
SUM(ResolutionWidth + 32), SUM(ResolutionWidth + 33), SUM(ResolutionWidth + 34), SUM(ResolutionWidth + 35),
SUM(ResolutionWidth + 36), SUM(ResolutionWidth + 37), SUM(ResolutionWidth + 38), SUM(ResolutionWidth + 39),
SUM(ResolutionWidth + 40), SUM(ResolutionWidth + 41), SUM(ResolutionWidth + 42), SUM(ResolutionWidth + 43),
SUM(ResolutionWidth + 44), SUM(ResolutionWidth + 45), SUM(ResolutionWidth + 46), SUM(ResolutionWidth + 47),
SUM(ResolutionWidth + 48), SUM(ResolutionWidth + 49), SUM(ResolutionWidth + 50), SUM(ResolutionWidth + 51),
SUM(ResolutionWidth + 52), SUM(ResolutionWidth + 53), SUM(ResolutionWidth + 54), SUM(ResolutionWidth + 55),
SUM(ResolutionWidth + 56), SUM(ResolutionWidth + 57), SUM(ResolutionWidth + 58), SUM(ResolutionWidth + 59),
SUM(ResolutionWidth + 60), SUM(ResolutionWidth + 61), SUM(ResolutionWidth + 62), SUM(ResolutionWidth + 63),
SUM(ResolutionWidth + 64), SUM(ResolutionWidth + 65), SUM(ResolutionWidth + 66), SUM(ResolutionWidth + 67),
SUM(ResolutionWidth + 68), SUM(ResolutionWidth + 69), SUM(ResolutionWidth + 70), SUM(ResolutionWidth + 71),
SUM(ResolutionWidth + 72), SUM(ResolutionWidth + 73), SUM(ResolutionWidth + 74), SUM(ResolutionWidth + 75),
SUM(ResolutionWidth + 76), SUM(ResolutionWidth + 77), SUM(ResolutionWidth + 78), SUM(ResolutionWidth + 79),
SUM(ResolutionWidth + 80), SUM(ResolutionWidth + 81), SUM(ResolutionWidth + 82), SUM(ResolutionWidth + 83),
SUM(ResolutionWidth + 84), SUM(ResolutionWidth + 85), SUM(ResolutionWidth + 86), SUM(ResolutionWidth + 87),
SUM(ResolutionWidth + 88), SUM(ResolutionWidth + 89) FROM hits;

-- 31: searches by engine and address
SELECT SearchEngineID, ClientIP, COUNT(*) AS c, SUM(IsRefresh), AVG(ResolutionWidth) FROM hits WHERE SearchPhrase <>
'' GROUP BY SearchEngineID, ClientIP ORDER BY c DESC LIMIT 10;

-- 32: searches by row and address
SELECT WatchID, ClientIP, COUNT(*) AS c, SUM(IsRefresh), AVG(ResolutionWidth) FROM hits WHERE SearchPhrase <> '' GROUP
BY WatchID, ClientIP ORDER BY c DESC LIMIT 10;

-- 33: everything by row and address: a group for each row
SELECT WatchID, ClientIP, COUNT(*) AS c, SUM(IsRefresh), AVG(ResolutionWidth) FROM hits GROUP BY WatchID, ClientIP
ORDER BY c DESC LIMIT 10;

-- 34: busiest pages
SELECT URL, COUNT(*) AS c FROM hits GROUP BY URL ORDER BY c DESC LIMIT 10;

-- 35: busiest pages beside a constant
SELECT 1, URL, COUNT(*) AS c FROM hits GROUP BY 1, URL ORDER BY c DESC LIMIT 10;

-- 36: expressions as keys
SELECT ClientIP, ClientIP - 1, ClientIP - 2, ClientIP - 3, COUNT(*) AS c FROM hits GROUP BY ClientIP, ClientIP - 1,
ClientIP - 2, ClientIP - 3 ORDER BY c DESC LIMIT 10;

-- 37: a site's pages
SELECT URL, COUNT(*) AS PageViews FROM hits WHERE CounterID = 62 AND EventDate BETWEEN '2013-07-01' AND '2013-07-31'
AND IsRefresh = 0 AND DontCountHits = 0 AND URL <> '' GROUP BY URL ORDER BY PageViews DESC LIMIT 10;

-- 38: a site's titles
SELECT Title, COUNT(*) AS PageViews FROM hits WHERE CounterID = 62 AND EventDate BETWEEN '2013-07-01' AND '2013-07-31'
AND IsRefresh = 0 AND DontCountHits = 0 AND Title <> '' GROUP BY Title ORDER BY PageViews DESC LIMIT 10;

-- 39: a site's links, a later page of the result
SELECT URL, COUNT(*) AS PageViews FROM hits WHERE CounterID = 62 AND EventDate BETWEEN '2013-07-01' AND '2013-07-31'
AND IsRefresh = 0 AND IsLink <> 0 AND IsDownload = 0 GROUP BY URL ORDER BY PageViews DESC LIMIT 10 OFFSET 5;

-- 40: ways to a site, a later page of the result
SELECT TraficSourceID, SearchEngineID, AdvEngineID, CASE WHEN SearchEngineID = 0 AND AdvEngineID = 0 THEN Referer ELSE
'' END AS Src, URL AS Dst, COUNT(*) AS PageViews FROM hits WHERE CounterID = 62 AND EventDate BETWEEN '2013-07-01' AND
'2013-07-31' AND IsRefresh = 0 GROUP BY TraficSourceID, SearchEngineID, AdvEngineID, Src, Dst ORDER BY PageViews DESC
LIMIT 10 OFFSET 20;

-- 41: where one referer led, by day
SELECT URLHash, EventDate, COUNT(*) AS PageViews FROM hits WHERE CounterID = 62 AND EventDate BETWEEN '2013-07-01' AND
'2013-07-31' AND IsRefresh = 0 AND TraficSourceID IN (-1, 6) AND RefererHash = 4917414321755324229 GROUP BY URLHash,
EventDate ORDER BY PageViews DESC LIMIT 10 OFFSET 2;

-- 42: windows on one page
SELECT WindowClientWidth, WindowClientHeight, COUNT(*) AS PageViews FROM hits WHERE CounterID = 62 AND EventDate
BETWEEN '2013-07-01' AND '2013-07-31' AND IsRefresh = 0 AND DontCountHits = 0 AND URLHash = -6150864193075787846 GROUP
BY WindowClientWidth, WindowClientHeight ORDER BY PageViews DESC LIMIT 10 OFFSET 10;

-- 43: a site's views by minute
SELECT DATE_TRUNC('minute', EventTime) AS M, COUNT(*) AS PageViews FROM hits WHERE CounterID = 62 AND EventDate
BETWEEN '2013-07-14' AND '2013-07-15' AND IsRefresh = 0 AND DontCountHits = 0 GROUP BY M ORDER BY M LIMIT 10 OFFSET 10;
